"""The environment contract, its checks, and the tasks."""
