"""A value that a test knows to be there."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def there(value: T | None) -> T:
    assert value is not None
    return value
