"""Traces: files that say who asked for how much and when, one module for each form; read line by line."""
