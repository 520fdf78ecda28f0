"""Tell an error in one line."""


def error_line(error: BaseException) -> str:
    """Return an error's message as one line, without the number that an OSError puts before it."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    return " ".join(text.split())
