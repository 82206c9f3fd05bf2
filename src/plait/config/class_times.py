"""Class times: a time for each service class, as one option.

Owns its form. `500ms` is for requests with somebody waiting; `online=500ms,batch=1m` names classes.
"""

from __future__ import annotations

from dataclasses import dataclass

from plait.config.values import parse_target
from plait.core.request import ServiceClass


@dataclass(frozen=True, slots=True)
class ClassTimes:
    """Seconds; None: none for that class."""

    online: float | None = None
    batch: float | None = None

    def of(self, service_class: ServiceClass) -> float | None:
        return self.online if service_class is ServiceClass.ONLINE else self.batch


def parse_class_times(text: str) -> ClassTimes:
    if "=" not in text:
        return ClassTimes(online=parse_target(text))
    times: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in set(ServiceClass) or name in times:
            raise ValueError("a time such as 500ms, or one for each class such as online=500ms,batch=1m, is expected")
        times[name] = parse_target(value)
    return ClassTimes(**times)
