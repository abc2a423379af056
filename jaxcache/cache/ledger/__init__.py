"""What is known about entries beyond their files."""
