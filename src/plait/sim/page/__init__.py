"""Page: a report as one HTML file with plots, made of text alone: no script, no font, no address of anything."""
