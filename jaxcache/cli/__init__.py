"""The command line: parse, call one operation, show its view, exit."""
