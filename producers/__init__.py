"""Where facts come from: hypervisors, traces, load. A producer imports schemas only and is given a `publish` callable."""
