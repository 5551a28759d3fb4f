"""What a process counts about its own work."""
