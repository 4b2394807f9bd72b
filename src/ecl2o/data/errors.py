"""How bad input is refused."""


class DataError(ValueError):
    """A file or series that cannot be used; the message names file, row and column, and says what to do."""
