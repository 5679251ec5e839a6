"""A relay between two workers' data planes, for tests: passes their messages on, tells which one passes, and can stop
doing so, as a cut link would. Standard library only.
"""
# SPDX-License-Identifier: Apache-2.0
import contextlib
import socket
import threading

import data_plane


class Relay:
    """Listens at `host`, at the port of the worker it stands for, which listens at another host's address.

    `watch(kind, count)`, if there is one, is called before the count-th message of a type is passed on, from a thread
    of a connection. When it returns False, nothing passes any more, in neither direction, and the connections stay:
    what their ends send is acknowledged and never read.
    """

    def __init__(self, host, worker_address):
        self.worker_address = worker_address
        self.watch = None
        self.listener = socket.create_server((host, worker_address[1]))
        self.sockets = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                try:
                    far = socket.create_connection(self.worker_address, timeout=data_plane.PATIENCE)
                except OSError:  # the worker is gone: so is who asks for it, until there is another
                    near.close()
                    continue
                far.settimeout(None)
                self.sockets += [near, far]
                connection = Connection(self, [near, far])
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=connection.carry, args=(source, target), daemon=True).start()

    def drop(self):
        """Ends all connections; a new one is counted from its beginning."""
        sockets, self.sockets = self.sockets, []
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def close(self):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.drop()


class Connection:
    """The two halves of one connection through a relay."""

    def __init__(self, relay, ends):
        self.relay, self.ends = relay, ends
        self.counts = {}
        self.cut = False

    def carry(self, source, target):
        """Until one end closes, or the link is cut; an end that died takes the other along."""
        with contextlib.suppress(OSError), source.makefile("rb") as stream:
            while head := stream.read(data_plane.HEADER.size + 8):
                _, _, kind, _, size, _, _, _ = data_plane.HEADER.unpack_from(head)
                body = stream.read(size)
                count = self.counts[kind] = self.counts.get(kind, 0) + 1
                if self.relay.watch and self.relay.watch(kind, count) is False:
                    self.cut = True
                if self.cut:
                    return
                target.sendall(head + body)
        if not self.cut:
            for end in self.ends:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
