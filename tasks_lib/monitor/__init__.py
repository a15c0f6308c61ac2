"""What a person looks at: the live monitor, and the browser of runs. They only read."""
