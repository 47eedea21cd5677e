"""Runs in the original client's environment: its `det`, many times, for the price of importing it once.

Reads one JSON object a line (`arguments`, `input`) and answers with one (`code`, `out`, `err`). Every
command runs in a fork of its own, as fresh as a process of its own.
"""

import json
import os
import sys
import tempfile

from determined.cli import cli


def run(arguments, text):
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(text.encode())
        given.seek(0)
        pid = os.fork()
        if pid == 0:
            become(arguments, given, out, err)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        answer = {"code": code}
        for name, file in (("out", out), ("err", err)):
            file.seek(0)
            answer[name] = file.read().decode()
        return answer


def become(arguments, given, out, err):
    code = 70
    try:
        for number, file in enumerate((given, out, err)):
            os.dup2(file.fileno(), number)
        sys.argv = ["det", *arguments]
        try:
            cli.main(arguments)
            code = 0
        except SystemExit as end:
            if isinstance(end.code, str):
                sys.stderr.write(end.code)
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        # Whatever happens, the fork never goes on as a second driver.
        os._exit(code)


def main():
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin.buffer.raw:
        request = json.loads(line)
        answers.write(json.dumps(run(request["arguments"], request["input"])) + "\n")
        answers.flush()


main()
