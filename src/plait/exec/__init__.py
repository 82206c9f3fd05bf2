"""Executors: what runs a step. They see programs, weights and plans; never queues, the scheduler or SLOs."""
