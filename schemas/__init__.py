"""What messages say: every record on every topic, as frozen structs with units in their names."""
