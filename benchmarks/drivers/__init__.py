"""The tests: each driver does one round of one test against one peer."""
