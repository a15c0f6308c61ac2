"""The live monitor and the browser of runs: pages that a person looks at. They only read."""
