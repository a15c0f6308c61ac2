"""DevTools addresses for lent pages: anybody's client sees one episode's browser context alone.

`WebSession.lend` lends a page, `DevToolsServer.offer` gives it an address, `DevToolsClient` answers
each client of it by `Rules`. Chromium itself has no debugging port: everything goes over the pool's
own wire, in sessions of the client's own.
"""
