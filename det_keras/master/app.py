"""The web application: routes, and the rules that hold for every call."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import AsyncIterator

import anyio.to_thread
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from det_keras.master import errors
from det_keras.master.api import (
    allocations,
    auth,
    checkpoints,
    cluster,
    experiments,
    jobs,
    logs,
    master_log,
    media,
    provenance,
    queue,
    series,
    steering,
    tasks,
    tensorboards,
    training,
    trial_table,
    trials,
    unmanaged,
    users,
)
from det_keras.master.api.runs import retention, search
from det_keras.master.api.teams import (
    audit,
    models,
    projects,
    settings,
    templates,
    tokens,
    webhooks,
    workspaces,
)
from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.server import openapi, unserved
from det_keras.master.server.address_form import AddressFormMiddleware
from det_keras.master.server.admission import Admission, AdmissionMiddleware
from det_keras.master.server.auth_middleware import AuthMiddleware
from det_keras.master.server.browser import wants_page
from det_keras.master.server.calls import refuse_unknown_parameters
from det_keras.master.server.capacity import Capacity
from det_keras.master.server.compression import CompressionMiddleware
from det_keras.master.server.responses import error_reply
from det_keras.master.web import shared, site
from det_keras.master.web.live_parts import MarkMiddleware
from det_keras.master.web.provenance import checkpoint
from det_keras.master.web.rendering import error_page
from det_keras.master.wire import validation_text

logger = logging.getLogger(__name__)

_BY_STATUS = {
    kind.status: kind
    for kind in (
        errors.InvalidArgumentError,
        errors.UnauthenticatedError,
        errors.PermissionDeniedError,
        errors.NotFoundError,
        errors.UnimplementedError,
        errors.UnavailableError,
    )
}


def create_app(master: EmbeddedMaster, capacity: Capacity | None = None) -> FastAPI:
    """Return the application that serves `master`; it starts and stops the master with itself.

    Args:
        master: the master.
        capacity: how much it does at once; None for what this process can do.
    """
    capacity = capacity or Capacity.of_process()

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        import asyncio

        # Handlers that use the database or the disk run on these threads; long polls wait on the event loop instead.
        anyio.to_thread.current_default_thread_limiter().total_tokens = capacity.threads
        master.notifier.attach(asyncio.get_running_loop())
        await anyio.to_thread.run_sync(master.start)
        yield
        await anyio.to_thread.run_sync(master.stop)

    app = FastAPI(
        title="det_keras master",
        lifespan=lifespan,
        redirect_slashes=False,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    app.state.master = master
    app.state.admission = Admission(capacity)
    app.state.shared_pages = shared.SharedPages()
    # The routers of training, series and log streams have fixed words where others have ids, so they come first.
    modules = (
        auth,
        settings,
        users,
        training,
        logs,
        experiments,
        series,
        steering,
        trial_table,
        trials,
        retention,
        search,
        workspaces,
        projects,
        templates,
        tokens,
        models,
        audit,
        webhooks,
        media,
        unmanaged,
        checkpoints,
        allocations,
        jobs,
        tasks,
        tensorboards,
        cluster,
        queue,
        master_log,
        provenance,
    )
    routers = [module.router for module in modules]
    # Generated on the first request: it takes longer than the rest of the start.
    app.state.describe = functools.cache(lambda: openapi.describe_calls(routers))
    # The page of a checkpoint has the address at which programs download it.
    app.include_router(checkpoint.router)
    for router in routers:
        app.include_router(router, dependencies=[Depends(refuse_unknown_parameters)])
    for router in (openapi.router, shared.router, site.router, unserved.router):
        app.include_router(router)
    app.add_exception_handler(errors.ApiError, _refused)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _not_routed)
    app.add_exception_handler(OSError, _used_up)
    app.add_exception_handler(Exception, _failed)
    # The middleware added last handles a call first.
    app.add_middleware(AdmissionMiddleware, admission=app.state.admission)
    app.add_middleware(AuthMiddleware, accounts=master.accounts, notifier=master.notifier)
    app.add_middleware(AddressFormMiddleware)
    app.add_middleware(MarkMiddleware)
    app.add_middleware(CompressionMiddleware)
    return app


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.ApiError)
    return await _answer(request, error)


async def _malformed(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return await _answer(request, errors.InvalidArgumentError(validation_text(list(error.errors()))))


async def _not_routed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = _BY_STATUS.get(error.status_code, errors.ApiError)
    if wants_page(request.scope):
        return await error_page(request, kind(str(error.detail)))
    return error_reply(request.url.path, kind(str(error.detail)), status=error.status_code)


async def _answer(request: Request, error: errors.ApiError) -> Response:
    """Return an error as a page if a browser requested a page, as JSON otherwise."""
    if wants_page(request.scope):
        return await error_page(request, error)
    return error_reply(request.url.path, error)


async def _used_up(request: Request, error: Exception) -> Response:
    """Refuse a call for which there is no space, so that it is repeated; any other error is one of the program."""
    refusal = errors.unavailability(error)
    if refusal is None:
        raise error
    return await _answer(request, refusal)


async def _failed(request: Request, error: Exception) -> Response:
    logger.error("%s %s failed.", request.method, request.url.path, exc_info=error)
    return await _answer(request, errors.ApiError(f"The master failed: {error!r}. See its log for details."))
