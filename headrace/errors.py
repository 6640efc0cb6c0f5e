"""The errors users see: one sentence with what was found, where, what is allowed and what to do."""


class UserError(ValueError):
    """Something in the user's YAML, files or machine is wrong; the command prints the message without a traceback."""


class InputError(UserError):
    """A file of the user's cannot be read as asked; the message names file and line."""


class MissingExtraError(UserError):
    """A feature needs an optional package; the message says which `pip install` brings it."""

    def __init__(self, feature: str, package: str, extra: str):
        super().__init__(f"{feature} needs {package}, which is not installed: pip install 'headrace[{extra}]'")
        self._made_of = (feature, package, extra)

    def __reduce__(self):  # worker processes hand it to their parent
        return MissingExtraError, self._made_of
