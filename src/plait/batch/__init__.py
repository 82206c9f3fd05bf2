"""Batch: files of requests, answered line by line over a durable ledger: nothing is lost and nothing runs twice."""
