"""Measuring a policy: whole episodes, schedule, records."""
