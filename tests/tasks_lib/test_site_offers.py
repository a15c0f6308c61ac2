"""Shards with tasks on a recipe's site go to the workers that can serve it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import distributed
import pytest
import yaml
from prefect.settings import PREFECT_API_URL, temporary_settings

from envs.sites import LiveOptions, build_of, build_site, find_recipe
from envs.types import ConfigError
from tasks_lib.config import ClusterConfig
from tasks_lib.processes.dask_clients import PRELOAD
from tasks_lib.processes.site_offers import needed_offers
from tasks_lib.rollouts import shards
from tasks_lib.rollouts.cluster import use_cluster
from tasks_lib.rollouts.shards import share_groups
from tests.envs.sites.recipes.test_instances import TASK
from training.records.groups import GroupSpec

SHOP = {"kind": "process", "start": {"command": ["python", "-m", "http.server", "{port}"]}, "limits": {}}


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe ``shop`` that is built, one that is not, two that need no build, and a group."""
    monkeypatch.setenv("ROLLWRIGHT_SITES", str(tmp_path))
    monkeypatch.setenv("ROLLWRIGHT_SITE_BUILDS", str(tmp_path / "builds"))
    (tmp_path / "none").mkdir()
    kinds: dict[str, Any] = {
        "shop": SHOP,
        "mill": SHOP,
        "town": {"kind": "group", "sites": {"shop.town.example": "shop", "docs.town.example": "docs"}},
        "docs": {"kind": "mirror", "start": {"recording": "docs.har"}},
        "pages": {"kind": "static", "start": {"folder": "none"}},
    }
    for name, values in kinds.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(values))
    build_site(find_recipe("shop"))
    return tmp_path


def test_only_recipes_with_servers_need_a_worker_that_has_them(recipes: Path) -> None:
    def needed(*sites: str, **live: Any) -> set[str]:
        return set(needed_offers(sites, LiveOptions(**live)))

    assert needed("miniwob", "pages", "docs", "www.example", "json:loads") == set()
    assert needed("town") == needed("shop", "pages") == {"site=shop"} and needed("shop", "mill") == {
        "site=shop",
        "site=mill",
    }
    assert needed("shop", addresses={"shop": "https://shop.example"}) == set(), "somebody else serves it"
    hosts = {"addresses": {"reddit": "https://a.example"}, "recipes": {"a.example": "shop", "b.example": "mill"}}
    assert needed("reddit", **hosts) == {"site=shop", "site=mill"} and needed("www.example", **hosts) == set()


def test_groups_of_other_needs_are_in_other_shards(recipes: Path) -> None:
    sites = ["miniwob", "shop", "pages", "mill", "shop", "miniwob"]
    groups = [
        GroupSpec(group_id=f"i000000-g{number:04d}", task=TASK.model_copy(update={"site": site}), seeds=(0,))
        for number, site in enumerate(sites)
    ]
    made = share_groups(groups, workers=2, groups_per_task=0, live=LiveOptions())
    assert [[group.task.site for group in shard] for shard in made] == [
        ["miniwob", "pages", "miniwob"],
        ["shop", "shop"],
        ["mill"],
    ]


def address_of_worker() -> str:
    return str(distributed.get_worker().address)


@pytest.mark.dask
def test_shards_go_to_the_worker_that_has_the_site(recipes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers, one of which has another folder of builds, as on another machine."""
    with (
        distributed.LocalCluster(
            n_workers=1,
            threads_per_worker=4,
            resources={"browser": 4},
            preload=[PRELOAD],
            env={"ROLLWRIGHT_SITE_BUILDS": str(recipes / "elsewhere")},
            dashboard_address=None,
            memory_limit=0,
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        (without,) = client.scheduler_info()["workers"]
        with pytest.raises(
            ConfigError, match=r"no worker can serve the site town: none offers site=shop; run .*build shop"
        ):
            check(cluster, ["town"])
        cluster.new_spec["options"]["env"] = {
            "ROLLWRIGHT_SITE_BUILDS": str(build_of(find_recipe("shop")).folder.parent)
        }
        cluster.scale(2)
        client.wait_for_workers(2)
        (both,) = [address for address in client.scheduler_info()["workers"] if address != without]
        check(cluster, ["town", "shop", "miniwob"])
        with pytest.raises(ConfigError, match="site mill"):
            check(cluster, ["shop", "mill"])
        monkeypatch.setattr(
            shards,
            "roll_out_shard",
            SimpleNamespace(submit=lambda request: client.submit(address_of_worker, pure=False)),
        )
        with (
            temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}),  # no flow runs here
            use_cluster(ClusterConfig(address=cluster.scheduler_address), None),
        ):

            def submitted(site: str) -> Any:
                request: Any = SimpleNamespace(groups=[SimpleNamespace(seeds=(0,))], sites={site}, live=LiveOptions())
                return shards.submit(request)

            def played(site: str) -> set[str]:
                return set(client.gather([submitted(site) for _ in range(6)], direct=False))

            assert played("shop") == played("town") == {both}
            client.retire_workers([both])
            waiting = submitted("shop")
            assert played("miniwob") == {without} and not waiting.done(), "it is not asked"


def check(cluster: distributed.LocalCluster, sites: list[str]) -> None:
    """Open the cluster for a run with tasks on these sites."""
    with (
        temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}),
        use_cluster(ClusterConfig(address=cluster.scheduler_address), None, sites=sites),
    ):
        pass
