"""What an agent is asked to reach."""
