"""Params under construction: values by our paths, each with where it comes from."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

OURS = "Headrace's default"


@dataclass
class Draft:
    tree: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    """Our dotted path -> where its value stands in the file."""

    def put(self, path: str, value: Any, origin: str) -> None:
        """Set a value; numbers in the path are places in lists, filled in order."""
        node: Any = self.tree
        keys = path.split(".")
        for key, following in pairwise(keys):
            empty: Any = [] if following.isdigit() else {}
            if isinstance(node, list):
                if int(key) == len(node):
                    node.append(empty)
                node = node[int(key)]
            else:
                node = node.setdefault(key, empty)
        if isinstance(node, list):
            node.append(value)
        else:
            node[keys[-1]] = value
        self.origins[path] = origin
