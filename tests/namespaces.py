"""Network namespaces for tests, which have addresses and interfaces of their own as hosts have.

Need root, ip and tc (package iproute2) and a kernel with namespaces and tbf; a test without these is skipped.
"""
# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import unittest


def ip(*command, tool="ip"):
    try:
        done = subprocess.run([tool, *command], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise unittest.SkipTest(f"{tool} is not there (package iproute2)") from None
    if done.returncode != 0:
        raise unittest.SkipTest(f"this machine does not allow `{tool} {' '.join(command)}`: {done.stderr.strip()}")


def add(case, name):
    """A namespace for the tests of the class `case`, with its loopback up."""
    if os.geteuid() != 0:
        raise unittest.SkipTest("only root may make network namespaces")
    ip("netns", "add", name)
    case.addClassCleanup(subprocess.run, ["ip", "netns", "del", name], capture_output=True, check=False)
    ip("-n", name, "link", "set", "lo", "up")


def shape(name, interface, rate, waiting="256k"):
    """No more than `rate` leaves the interface; so many bytes wait before it, as in a switch, and more are lost."""
    shaper = ("tbf", "rate", rate, "burst", "128k", "limit", waiting)
    ip("-n", name, "qdisc", "replace", "dev", interface, "root", *shaper, tool="tc")


def within(name):
    """What a command line begins with to run there."""
    return ("ip", "netns", "exec", name)
