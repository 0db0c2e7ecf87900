"""One GET of a probe."""

import asyncio

import aiohttp

from plugin.discovery.probes import Question


async def get(question: Question) -> str:
    """Why the answer to the question's GET is not as it should be; empty where it is.

    Each has a connection of its own, as a client has that comes for the first time. Redirections are
    answers too, and nothing of a body is read.
    """
    timeout = aiohttp.ClientTimeout(total=None)
    try:
        async with (
            asyncio.timeout(question.timeout),
            aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.get(question.url, allow_redirects=False) as answer,
        ):
            status = answer.status
    except TimeoutError:
        return f"{question.url}: no answer within {question.timeout:g} s"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return f"{question.url}: {str(error) or type(error).__name__}"
    well = 200 <= status <= 299 if question.status is None else status in question.status
    return "" if well else f"{question.url}: status {status}"
