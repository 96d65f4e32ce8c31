"""A clock that the test sets."""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now
