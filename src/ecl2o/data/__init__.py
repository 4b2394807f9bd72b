"""From files to contexts: weather files, power models, series."""
