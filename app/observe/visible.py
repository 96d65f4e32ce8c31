"""Text of others for a terminal, which obeys what it is shown: what steers it is shown as an escape."""


def plain(text: str, *, lines: bool = False) -> str:
    """What others wrote, without control characters and those that change the direction of a line; blanks in quotes.
    With `lines` the text may have several of them."""
    if text.isspace() and not lines:
        return repr(text)
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or (lines and each == "\n") else each.encode("unicode_escape").decode()
        for each in text
    )
