"""A server of tools, made with the Python library of the Model Context Protocol. It prints its address."""

import socket

import uvicorn
from mcp.server.mcpserver import MCPServer

server = MCPServer("city")


@server.tool()
def weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


listener = socket.create_server(("127.0.0.1", 0))
print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="error")).run(sockets=[listener])
