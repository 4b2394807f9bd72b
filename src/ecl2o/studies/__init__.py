"""Complete case studies built from the parts."""
