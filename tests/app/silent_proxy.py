"""A TCP port in front of a unix socket, for networks that go silent: nothing is closed, and nothing gets through."""

import asyncio


class SilentProxy:
    """`silent` holds everything back, in both directions, also new connections."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> "SilentProxy":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    def silence(self) -> None:
        self._open.clear()

    def speak(self) -> None:
        self._open.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open.wait()
        try:
            inner_reader, inner_writer = await asyncio.open_unix_connection(self._path)
        except OSError:
            writer.close()
            return
        self._writers += [writer, inner_writer]
        for source, sink in ((reader, inner_writer), (inner_reader, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                await self._open.wait()
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        await self._open.wait()  # an end does not get through either
        sink.close()

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.speak()
        for writer in self._writers:
            writer.close()
        if self._tasks:
            await asyncio.wait(self._tasks)
