"""Layouts: how ways of cutting memory compare, as pure functions; one file each, nothing is allocated here."""
