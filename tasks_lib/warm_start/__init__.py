"""A warm start in stages: pre-train, demonstrate, clone, measure, publish: ``flows.warm_start``."""
