"""The one exception that a user's mistake raises."""


class UserError(Exception):
    """Something the user can put right: one sentence on what is wrong, one on the remedy.

    The command line prints both on one line and ends with exit code 2. Anything else that
    escapes is a bug of ours and keeps its traceback.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem} {remedy}")
        self.problem = problem
        self.remedy = remedy
