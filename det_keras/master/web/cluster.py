"""The pages of the machine: its slots, the queue, and jobs with their logs."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Request
from starlette.responses import Response

from det_keras.config.secrets import without_secret_variables
from det_keras.config.yaml_text import dump_yaml
from det_keras.display import size_text
from det_keras.master.errors import NotFoundError
from det_keras.master.reports.system import SystemMetric, SystemValue
from det_keras.master.server.calls import MasterDep
from det_keras.master.web.alerts import job_alerts
from det_keras.master.web.provenance.record import shown_record
from det_keras.master.web.rendering import page
from det_keras.master.web.rest import Rest
from det_keras.master.web.teams.audit import last_changes

router = APIRouter(include_in_schema=False)

# Six periods of a profiler: an older sample is not what a task does now.
_MOST_AGE_S = 60.0
_TRIAL = re.compile(r"Trial (\d+) \(Experiment \d+\)$")


@router.get("/cluster")
async def cluster(request: Request, master: MasterDep) -> Response:
    """Show the slots with the load of their tasks, the running tasks and the queue."""
    rest = Rest(request)
    agents, tasks, queue, pools, about, files = await asyncio.gather(
        rest.get("/agents"),
        rest.get("/tasks"),
        rest.get("/job-queues-v2"),
        rest.get("/resource-pools"),
        rest.get("/master"),
        rest.get("/master/usage"),
    )
    running = [{**task, "page": _page_of(task)} for task in tasks["allocationIdToSummary"].values()]
    trial_ids = [int(match[1]) for task in running if (match := _TRIAL.match(task["name"]))]
    loads = await anyio.to_thread.run_sync(master.system_metrics.latest, trial_ids)
    pages = {f"/trials/{trial_id}": load for trial_id, load in loads.items()}
    return await page(
        request,
        "cluster.html",
        slots=_slots(agents["agents"], running, pages),
        running=running,
        pool=pools["resourcePools"][0]["description"],
        queue=[entry["full"] for entry in queue["jobs"]],
        about=about,
        usage=files["usage"],
    )


@router.get("/jobs")
async def jobs(request: Request) -> Response:
    """List jobs, latest first."""
    rest = Rest(request)
    commands, boards = await asyncio.gather(rest.get("/commands"), rest.get("/tensorboards"))
    rows = [*commands["commands"], *boards["tensorboards"]]
    rows.sort(key=lambda row: row["startTime"] or "", reverse=True)
    return await page(request, "jobs.html", rows=rows)


@router.get("/jobs/{job_id}")
async def job(request: Request, job_id: str) -> Response:
    """Show a job and its log."""
    rest = Rest(request)
    kind, key, origin = "commands", "command", None
    try:
        answer = await rest.get(f"/commands/{job_id}")
        origin = (await rest.get(f"/commands/{job_id}/provenance"))["provenance"]
    except NotFoundError:
        kind, key = "tensorboards", "tensorboard"
        answer = await rest.get(f"/tensorboards/{job_id}")
    text = dump_yaml(without_secret_variables(answer.get("config") or {}))
    kind_of_thing = "job" if key == "command" else "tensorboard"
    alerts = await job_alerts(rest, job_id, answer[key]["exitStatus"])
    return await page(
        request,
        "job.html",
        job=answer[key],
        kind=kind,
        config=text,
        alerts=alerts,
        audit_kind=kind_of_thing,
        changes=await last_changes(rest, kind_of_thing, job_id),
        provenance=shown_record(origin),
    )


def _page_of(task: dict[str, Any]) -> str:
    """Return the address of a task's page; the API gives a trial's number only as part of the task's name."""
    trial = _TRIAL.match(task["name"])
    return f"/trials/{trial[1]}" if trial else f"/jobs/{task['taskId']}"


def _slots(
    agents: list[dict[str, Any]],
    running: list[dict[str, Any]],
    loads: Mapping[str, Mapping[SystemMetric, SystemValue]],
) -> list[dict[str, Any]]:
    """Return the slots of all agents, each with the task that uses it and its load.

    Args:
        agents: as in the REST API.
        running: the running tasks, each with the address of its page.
        loads: the newest system metrics of tasks, by the address of their page.
    """
    used: dict[tuple[str, str], dict[str, Any]] = {}
    for task in running:
        for resources in task["resources"]:
            for agent_id, devices in resources["agentDevices"].items():
                for device in devices["devices"]:
                    used[agent_id, str(device["id"])] = task
    slots = []
    for agent in agents:
        for name, slot in sorted(agent["slots"].items(), key=lambda item: int(item[0])):
            user = used.get((agent["id"], str(slot["device"]["id"])))
            load = {} if user is None else loads.get(user["page"], {})
            row = {"agent": agent["id"], "name": name, "slot": slot, "task": user}
            slots.append({**row, "load": _load_text(load, agent["id"], time.time())})
    return slots


def _load_text(load: Mapping[SystemMetric, SystemValue], agent: str, now: float) -> str:
    """Return the load of a task and of its machine; empty if there is no sample of the last minute.

    Args:
        load: the newest system metrics of the task.
        agent: name of the machine.
        now: in seconds since 1970.
    """
    values = {
        metric.name: newest.value
        for metric, newest in load.items()
        if metric.agent == agent and not metric.device and now - newest.time <= _MOST_AGE_S
    }
    parts = []
    if {"cpu_util_trial", "cpu_util_simple"} <= values.keys():
        own, machine = values["cpu_util_trial"], values["cpu_util_simple"]
        parts.append(f"CPU {own:.0f}%, machine {machine:.0f}%")
    if {"memory_trial_bytes", "memory_used_percent"} <= values.keys():
        size, machine = size_text(values["memory_trial_bytes"]), values["memory_used_percent"]
        parts.append(f"memory {size}, machine {machine:.0f}%")
    gpus: dict[str, dict[str, float]] = {}
    for metric, newest in load.items():
        if metric.agent == agent and metric.group == "gpu" and now - newest.time <= _MOST_AGE_S:
            gpus.setdefault(metric.device, {})[metric.name] = newest.value
    for _, values in sorted(gpus.items()):
        texts = [f"{values['gpu_util']:.0f}%"] if "gpu_util" in values else []
        texts += [size_text(values["gpu_used_memory"])] if "gpu_used_memory" in values else []
        texts += [f"{values['gpu_temperature']:.0f} °C"] if "gpu_temperature" in values else []
        parts.append(f"GPU {', '.join(texts)}")
    return " · ".join(parts)
