"""What scripts/demo runs once the system is set up: builds kvlane, then three processes, one prompt,
one report.

Standard library only. Diagnostics go to stderr; with --json, stdout holds exactly one JSON object.
"""
# SPDX-License-Identifier: Apache-2.0
import argparse
import contextlib
import http.client
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROMPT = (
    "The old sailor sat down by the fire and looked at the children. Outside the wind was rising, and "
    "the rain beat against the windows of the little house. He had been silent for a long time, but "
    "now he put his pipe on the table and began to speak."
)
READY_SECONDS = 60  # for a process to load its model and say that it listens
ANSWER_SECONDS = 120  # without any sign of life from the gateway
STOP_SECONDS = 5  # to end by itself after SIGTERM
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# The time account in the order of a request's life, each interval with the parts it consists of.
ACCOUNT = {
    "queue": (),
    "restore": (),
    "prefill": ("prefill_attention", "prefill_quantise", "prefill_dequantise"),
    "encode": (),
    "wait_for_memory": (),
    "transfer": (),
    "decode_codec": (),
    "decode": ("decode_attention", "decode_dequantise"),
    "other": (),
}


class DemoError(Exception):
    """One sentence for the person in front of the terminal."""


class Server:
    """One kvlane process that prints a JSON line with its addresses once it is ready."""

    def __init__(self, role, command):
        self.role = role
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)

    def wait_ready(self):
        """The object that the process prints when it listens."""
        line = b""
        deadline = time.monotonic() + READY_SECONDS
        while not line.endswith(b"\n"):
            readable, _, _ = select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))
            if not readable:
                raise DemoError(f"the {self.role} was not ready after {READY_SECONDS} seconds")
            # One byte at a time: what follows the line must stay in the pipe.
            byte = os.read(self.process.stdout.fileno(), 1)
            if not byte:
                raise DemoError(f"the {self.role} ended with status {self.process.wait()} before it was ready")
            line += byte
        return json.loads(line)

    def ask_to_stop(self):
        if self.process.poll() is None:
            self.process.terminate()

    def wait_stopped(self):
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def stop(servers):
    """Stops them all; further signals wait until that is done."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    for server in servers:
        server.ask_to_stop()
    for server in servers:
        server.wait_stopped()
    signal.pthread_sigmask(signal.SIG_SETMASK, held)


@contextlib.contextmanager
def three_processes(program, model, codec):
    """Starts prefill worker, decode worker and gateway; gives the gateway's URL; stops all three."""
    servers = []

    def start(role, *arguments):
        # --parent: they end by themselves should this process be killed.
        servers.append(
            Server(
                f"{role} process",
                [program, role, *arguments, "--host", "127.0.0.1", "--port", "0", "--json"]
                + ["--log-level", "warning", "--parent", str(os.getpid())],
            )
        )
        return servers[-1]

    try:
        workers = [start("prefill", model, "--kv-codec", codec), start("decode", model)]
        prefill, decode = (worker.wait_ready()["url"] for worker in workers)
        gateway = start("gateway", "--prefill", prefill, "--decode", decode)
        yield gateway.wait_ready()["url"]
    finally:
        stop(servers)


def events(response):
    """The JSON objects of a stream of server-sent events, up to [DONE]."""
    for line in response:
        field, _, value = line.decode("utf-8").rstrip("\r\n").partition(": ")
        if field != "data":
            continue
        if value == "[DONE]":
            return
        event = json.loads(value)
        if "error" in event:
            raise DemoError(f"the answer broke off: {event['error']['message']}")
        yield event
    raise DemoError("the answer ended without [DONE]")


def ask(url, options, on_text):
    """Sends the prompt, calls on_text with each piece of the answer; gives text, account and kv."""
    request = {
        "model": pathlib.Path(options.model).resolve().name,
        "prompt": options.prompt,
        "max_tokens": options.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    address = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=ANSWER_SECONDS)
    with contextlib.closing(connection):
        connection.request(
            "POST", "/v1/completions", json.dumps(request), {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        if response.status != 200:
            body = response.read().decode("utf-8", "replace")
            raise DemoError(f"the gateway answered {response.status}: {error_message(body)}")
        text, extension = [], {}
        for event in events(response):
            extension = event.get("kvlane", extension)
            for choice in event["choices"]:
                text.append(choice["text"])
                on_text(choice["text"])
    if "account" not in extension or "kv" not in extension:
        raise DemoError("the answer came without a time account")
    return {"text": "".join(text), "account": extension["account"], "kv": extension["kv"]}


def error_message(body):
    try:
        return json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return body.strip() or "nothing"


def print_account(account):
    total = account["total"]

    def row(label, seconds):
        print(f"{label:<26}{seconds * 1e3:>10.2f}{seconds / total if total else 0:>9.1%}")

    print(f"{'time account':<26}{'ms':>10}{'share':>9}")
    for name, parts in ACCOUNT.items():
        row(name, account[name])
        for part in parts:
            row(f"  of it {part.removeprefix(name + '_')}", account[part])
    row("total", total)


def print_kv(answers):
    print(f"\n{'codec':<12}{'KV bytes raw':>14}{'shipped':>12}{'raw/shipped':>13}")
    for codec, answer in answers.items():
        raw, shipped = answer["kv"]["raw_bytes"], answer["kv"]["shipped_bytes"]
        print(f"{codec:<12}{raw:>14,}{shipped:>12,}{raw / shipped if shipped else 0:>13.3f}")
    print("(shipped bytes include the header of every frame)")
    if len(answers) > 1:
        same = len({answer["text"] for answer in answers.values()}) == 1
        print("The answers are the same with both." if same else "The answers DIFFER between the codecs.")
        if not same:
            raise DemoError("a lossless codec changed the answer")


def show(options, codecs):
    """For people: the answer as it comes, then the tables."""
    answers = {}
    for codec in codecs:
        first = not answers
        print(f"codec {codec}: starting prefill worker, decode worker and gateway ...", file=sys.stderr)
        with three_processes(options.program, options.model, codec) as url:
            if first:
                print(f"\n{options.prompt}", end="", flush=True)
            answers[codec] = ask(url, options, lambda text: print(text, end="", flush=True) if first else None)
            if first:
                print("\n")
    print_account(next(iter(answers.values()))["account"])
    print_kv(answers)


def show_json(options, codec):
    with three_processes(options.program, options.model, codec) as url:
        print(json.dumps(ask(url, options, lambda text: None), ensure_ascii=False))


def build():
    """Brings the release build of the program up to date; gives its path."""
    built = subprocess.run([ROOT / "scripts" / "build", "release", "kvlane"], stdout=sys.stderr, check=False)
    if built.returncode != 0:
        raise DemoError("kvlane could not be built")
    return ROOT / "build" / "release" / "kvlane"


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="scripts/demo",
        add_help=False,
        usage="scripts/demo [--prompt TEXT] [--max-tokens N] [--kv-codec none|splitzip] [--model DIR] [--json]",
    )
    parser.add_argument("--program", help=argparse.SUPPRESS)  # a kvlane that need not be built
    parser.add_argument("--model", default=ROOT / "models" / "kvlane-tiny-gqa")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--kv-codec", choices=("none", "splitzip"))
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def main():
    options = parse(sys.argv[1:])
    # Every end goes through the clean-up of three_processes. A shell that started this in the
    # background has set SIGINT to be ignored, and Python then leaves it so.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        options.program = options.program or build()
        if options.json:
            show_json(options, options.kv_codec or "splitzip")
        else:
            show(options, [options.kv_codec] if options.kv_codec else ["splitzip", "none"])
    except KeyboardInterrupt:
        return 130
    except (DemoError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
