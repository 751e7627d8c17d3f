"""Cross-field rules, one file per group; `check` calls them all."""
