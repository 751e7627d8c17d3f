"""Several runs with one question: jobs on a pool of devices, a search over them, one parent run in MLflow."""
