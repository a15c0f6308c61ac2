# ruff: noqa: E501
"""What the documentation promises, and the test that would fail if it were not so; and its numbers,
which are the code's.

A sentence that is changed here or there makes this file ask for the other. Rooms with tables of
their own (`tests/envs` of actions, settling, observation, parsing and judge) are not repeated.
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from envs.browser import end_evidence
from envs.browser.operations import Limits
from envs.browser.options import MAX_MEMORY_MB, RECYCLE_AFTER, RETIRE_AFTER
from envs.browser.process.connection import ConnectionTimes
from envs.bundled.generate.spec import WORLDS
from envs.ends.blocklist import MAX_TIMES
from envs.memory import episode as memory
from envs.observation import whole_page
from envs.rewards.chromiumrl import capture
from envs.rewards.webarena import shop
from envs.sites import server_state, site_http
from envs.types import Split
from envs.types.actions import MAX_HTML
from envs.types.rubrics import HOLDS_JUDGED, HOLDS_SIMILAR, PASS_THRESHOLD
from tasks_lib.folder.task_sets import COPIED
from tasks_lib.preflight.tasks import ALL
from tasks_lib.processes.kubernetes import RUN_RESTARTS
from tasks_lib.processes.trainer import RESTARTS

ROOT = Path(__file__).parents[1]

PROMISES: dict[str, dict[str, str]] = {
    "README.md": {
        "Starting the command again goes on from what is committed": "flows/test_resume.py::test_a_run_goes_on_after_a_full_disk_and_after_a_kill",
        "an environment whose episodes repeat exactly": "envs/test_determinism.py::test_ten_episodes_give_one_hash",
        "Exact token ids and log-probabilities are stored": "training/trainer/test_rows.py::test_rows_are_as_stored",
        "A failure of anything but the policy is an *abstention*": "envs/test_front_door.py::test_a_failing_browser_or_site_is_no_reward",
        "makes a deployment of each flow": "flows/test_forms.py::test_every_deployment_is_of_these_flows_and_has_no_markup",
    },
    "docs/concepts.md": {
        "Page seeds are split and never overlap": "envs/test_tasks.py::test_a_bad_value_is_named_with_line_and_field",
        "A broken browser, page, site or judge never becomes a reward": "envs/rewards/test_episode.py::test_a_failed_browser_abstains_whatever_the_rubric_says",
        "not on a site with": "envs/rewards/test_episode.py::test_nobody_runs_at_a_wall_again",
        "without any reward they are `null`": "tasks_lib/test_unknown.py::test_metrics_have_null_and_tensorboard_no_point",
        "Every training attempt (`started`) is in exactly one state": "training/test_journal.py::test_every_event_and_kill_leaves_the_states_that_the_files_give",
    },
    "docs/architecture.md": {
        "drops groups whose rewards are all equal": "training/test_batches.py::test_nothing_to_learn_gives_no_rows",
        "a record, batch, policy or trajectory under its final name is complete and never changes": "training/test_store.py::test_a_writer_killed_at_any_moment_leaves_the_old_or_the_new",
        "a pure function of the groups": "training/test_batches.py::test_same_groups_give_the_same_bytes_and_abstentions_no_rows",
        "nothing is tokenised twice": "training/trainer/test_rows.py::test_rows_are_as_stored",
        "A blob is checked against its name when read": "training/test_store.py::test_a_blob_is_stored_once_and_checked_when_read",
        "the first record wins, by a hard link": "training/test_store.py::test_of_many_writers_of_a_document_one_wins",
        "is rebuilt whenever a run is opened": "training/test_journal.py::test_a_ledger_of_another_run_is_replaced",
    },
    "docs/monitor.md": {
        "need the token and a page of this server; no other changes anything": "tasks_lib/monitor/test_gate.py::test_two_routes_change_something_and_say_why_they_do_not",
        "with its form, and Cancel for those that a Prefect worker runs": "flows/test_monitor_changes.py::test_cancel_is_for_deployed_runs_of_this_root_once_it_is_confirmed",
    },
    "docs/automations.md": {
        "once when its condition begins": "tasks_lib/test_alerts.py::test_a_run_that_stands_still_is_reported_once_until_it_moves",
        "so that an automation can name a deployment": "flows/test_automations.py::test_the_automations_act_on_runs_of_the_named_deployment",
        "A version with an alias keeps its weights": "tasks_lib/test_aliases.py::test_retention_never_removes_a_version_that_has_an_alias",
        "A no ends the flow run": "flows/test_approvals.py::test_a_promotion_waits_for_a_yes_and_a_no_ends_it",
        "asks again only for more episodes than were approved": "flows/test_approvals.py::test_a_sweep_beyond_its_budget_asks_once",
    },
    "docs/resume.md": {
        "are done again from their batches, and compared with what was published": "training/trainer/test_states.py::test_it_goes_on_from_the_last_state_and_refuses_another_batch",
        "Of the others `manifest.json` stays, beside `removed.json`": "tasks_lib/test_retention.py::test_published_versions_have_weights_or_tell_of_their_removal",
        "trains on while a thread writes it": "training/trainer/test_states.py::test_training_goes_on_while_a_state_is_written",
        "the first one names the folder once all shares": "training/trainer/test_state_writer.py::test_a_kill_between_any_two_files_leaves_a_whole_state",
        "keeps the weights of the newest n versions (two at least), version 0": "tasks_lib/test_retention.py::test_the_newest_the_first_and_the_needed_stay",
        "with `keep_best`, the best evaluated one": "tasks_lib/test_retention.py::test_the_best_is_the_newest_with_the_highest_mean",
        "checks every reference, changes nothing": "tasks_lib/test_doctor.py::test_a_whole_run_has_no_finding_and_opening_it_changes_nothing",
        "browsers, engine and trainer end within 30 s": "flows/test_cancel.py::test_a_cancelled_run_leaves_no_process_and_goes_on",
        "Only `iterations`, `evaluation`, `cluster`, `root`": "tasks_lib/test_run.py::test_only_the_judge_budget_of_a_run_may_change",
        "and one more if its state was being written": "training/trainer/test_states.py::test_what_follows_a_kill_has_the_same_weights",
        "started again from its last state, up to 3 times an update": "tasks_lib/test_retries.py::test_a_trainer_that_dies_is_started_again_three_times",
        "A trainer that *refuses* a batch is not restarted": "tasks_lib/test_retries.py::test_a_trainer_that_refuses_a_batch_is_not_started_again",
        "Opening reads what came since": "tasks_lib/test_run.py::test_a_run_that_goes_on_reads_only_what_came_since",
        "nothing cut short becomes a result": "flows/test_interrupt.py::test_an_interrupted_evaluation_keeps_only_what_was_played",
        "A second flow process on one folder ends at once": "tasks_lib/test_preflight.py::test_a_run_that_another_process_works_on_is_left_alone",
        "it is made again from the version before": "training/trainer/test_process.py::test_moving_a_damaged_policy_away_makes_the_same_one_again",
        "repeats later updates from their batches": "training/trainer/test_process.py::test_updates_are_done_again_to_the_last_bit_where_the_state_is_damaged",
        "what a result rests on has a sha256 that opening and the doctor compare": "tasks_lib/test_seals.py::test_what_a_result_rests_on_does_not_change_unseen",
        "its rows are left out and counted (`damaged`)": "tasks_lib/test_doctor.py::test_a_pending_update_leaves_out_episodes_with_lost_evidence",
        "nothing is called damaged": "training/test_disk.py::test_a_policy_that_cannot_be_read_for_the_moment_is_not_called_damaged",
        "no retries; temporary files are removed": "training/test_disk.py::test_a_disk_error_at_any_call_names_the_path_and_leaves_nothing",
        "never to delete one": "tasks_lib/test_advice.py::test_what_errors_advise_is_safe_to_do",
    },
    "docs/rubrics.md": {
        "What a person finds by scrolling": "envs/observation/test_whole_page.py::test_what_scrolling_shows_is_on_the_page_and_nothing_else",
        "such an interactive element is on the page": "envs/observation/test_whole_page.py::test_element_facts_read_the_page_too",
        "is neither true nor false, and the episode abstains unless": "envs/rewards/test_facts.py::test_a_fact_that_hangs_on_what_was_left_out_is_neither_true_nor_false",
        "and is read-only: V8 stops side effects": "envs/test_end_evidence.py::test_predicates_are_not_faked_not_seen_and_only_read",
        "`rubric_hash` is the sha256 of the canonical JSON": "envs/rewards/test_rubric.py::test_the_hash_depends_on_what_a_rubric_says_alone",
        "after each step if a fact asks for `ever`": "envs/test_end_evidence.py::test_text_facts_are_about_the_page_that_is_shown_last",
        "which are denied unless a fact asks for them": "envs/test_end_evidence.py::test_downloads_are_denied_without_a_fact_about_them",
    },
    "docs/rewards.md": {
        "abstains, and keeps the parts known so far": "tasks_lib/test_rewards.py::test_past_its_deadline_it_abstains_and_what_was_known_is_kept",
        "if a gate or required part is unavailable and none fails": "envs/test_rewards.py::test_gates_and_required_parts_close_or_abstain",
        "if no scored part is available": "envs/test_rewards.py::test_nothing_available_abstains_and_is_not_zero",
    },
    "docs/egress.md": {
        "and nothing else of the network or of this machine": "envs/egress/test_pages.py::test_a_page_reaches_nothing_that_is_not_listed",
        "the browser itself resolves no name": "envs/egress/test_pages.py::test_the_browser_looks_up_no_name",
        "A public name may not lead to a private, link-local or metadata address": "envs/egress/test_proxy.py::test_a_name_that_resolves_to_this_machine_is_refused",
        "Loopback is reachable only at a host and port that a site names": "envs/egress/test_proxy.py::test_names_of_loopback_reach_loopback_only_when_they_are_named",
        "no page, prompt or log holds them": "envs/egress/test_pages.py::test_pages_never_hold_the_credentials_that_their_site_gets",
        "They cannot be pickled": "envs/egress/test_message.py::test_secrets_are_added_for_their_origin_and_shown_nowhere",
    },
    "docs/memory.md": {
        "it is off, and no prompt mentions it": "envs/test_user_turn.py::test_a_memory_adds_only_its_own_lines_to_the_prompt",
        "better episode's stays": "envs/memory/test_memory.py::test_the_better_episode_s_value_stays",
        "cannot be kept from then on": "tasks_lib/test_memory.py::test_passwords_are_not_kept_and_repeated_notes_end_an_episode",
        "adds nothing;": "tasks_lib/test_sampling.py::test_family_memory_lasts_over_iterations_and_a_resume",
    },
    "docs/sampling.md": {
        "The same seed gives the same draw on every machine": "envs/tasks/test_samplers.py::test_the_same_seed_gives_the_same_draw",
        "refuses a state of other tasks or arguments": "envs/tasks/test_samplers.py::test_states_that_do_not_fit_are_refused",
        "every task once before one repeats": "envs/tasks/test_samplers.py::test_no_row_comes_again_before_all_have_come",
        "and a resumed run refuses others": "tasks_lib/test_task_sets.py::test_a_large_set_that_changed_is_refused",
    },
    "docs/browser-pool.md": {
        "Contexts share no process, storage or cache": "envs/test_isolation.py::test_traces_of_one_episode_are_absent_in_the_next_thirty",
        "A Chromium is replaced after": "envs/test_pool_options.py::test_an_old_browser_is_replaced_when_its_pages_are_back",
        "and the page is not touched twice": "envs/test_session_calls.py::test_a_repeated_step_is_carried_out_once",
    },
    "docs/environments.md": {
        "grades it as training does": "envs/test_front_door.py::test_a_rubric_grades_as_in_a_run",
        "Hosts other than the address's are refused": "envs/test_front_door.py::test_an_address_reaches_its_own_origin_alone",
    },
    "docs/serving.md": {
        "gets no turns until it has caught up": "training/serving_vllm/test_supervisor.py::test_a_server_that_is_behind_gets_no_turns_until_it_has_caught_up",
        "gets the current version before any turn": "training/serving_vllm/test_supervisor.py::test_a_server_that_died_is_started_again_with_the_version",
        "A wrong tensor, a stale server and swapped layers are found": "training/serving_vllm/test_held_weights.py::test_a_swapped_layer_is_found",
        "reads and hashes the folder once on each machine": "training/serving_vllm/test_reading.py::test_another_machine_reads_weights_once_before_the_pause",
        "the trainer sends a copy in host memory while it trains on": "training/trainer/test_sender.py::test_a_version_is_broadcast_while_the_next_one_is_trained",
        "Where that fails servers read the folder": "training/serving_vllm/test_broadcast.py::test_a_broadcast_that_breaks_off_leaves_the_folders_weights",
        "the last good version stays": "training/serving_vllm/test_supervisor.py::test_a_bad_version_leaves_the_last_good_one_everywhere",
        "so that each token is of one version": "training/serving_vllm/test_server.py::test_turns_in_flight_go_on_with_tokens_of_one_version_each",
        "A prompt that leaves no room for it is an abstention": "tasks_lib/test_serving.py::test_a_prompt_that_leaves_no_room_for_a_turn_is_an_abstention",
    },
    "docs/async.md": {
        "the loop starts the next update first": "tasks_lib/test_asynchronous.py::test_the_trainer_goes_on_while_a_version_is_published",
        "a test compares the two": "tasks_lib/test_asynchronous.py::test_the_simulator_says_what_the_loop_does",
        "An evaluation with tokens of another version is refused": "tasks_lib/test_asynchronous.py::test_an_evaluation_with_tokens_of_another_version_is_refused",
        "no group is too old, none is dropped for staleness": "tasks_lib/test_admitted_groups.py::test_each_group_is_in_one_batch_and_none_is_too_old",
        "gives the synchronous run token for token": "flows/test_resume.py::test_a_seed_gives_the_same_episodes_to_a_run_with_staleness_zero",
    },
    "docs/sweeps.md": {
        "A failed arm stops no other": "tasks_lib/test_sweeping.py::test_an_arm_that_fails_stops_no_other_and_is_tried_again_alone",
    },
    "docs/task-sets.md": {
        "give the same set, byte for byte": "envs/tasks/test_build.py::test_two_builds_have_the_same_bytes_and_a_rerun_writes_nothing",
        "so no task is in two splits": "envs/tasks/test_build.py::test_doubles_are_left_out_and_said",
        "A sub-task has a true subset of a task's fact groups": "envs/tasks/test_decompose.py::test_every_sub_rubric_is_a_true_subset",
        "at least two groups (`min_groups`), one of them with three facts or more": "envs/tasks/test_decompose.py::test_webgyms_conditions",
        "a kept group brings what it depends on": "envs/tasks/test_decompose.py::test_a_group_brings_what_it_is_after",
        "Unknown names and cycles are refused": "envs/tasks/test_decompose.py::test_an_order_that_cannot_be_is_refused",
        "A floor stays if a kept fact is about its similarity": "envs/tasks/test_decompose.py::test_a_floor_stays_with_a_fact_about_its_similarity",
        "unless it is `after` a fact that is left out": "envs/tasks/test_decompose.py::test_a_sub_task_by_hand",
        "a group with a DOM similarity, whose reference is the page of the whole task": "envs/tasks/test_decompose.py::test_a_similarity_to_the_whole_tasks_page_is_in_no_part",
        "drawn by seed and task id and spread over the numbers of facts": "envs/tasks/test_decompose.py::test_few_sub_tasks_are_spread_over_sizes",
        "A group without a description": "envs/tasks/test_decompose.py::test_a_group_without_words_is_refused_and_said",
        "words that reveal an expected answer, are refused": "envs/tasks/test_decompose.py::test_words_that_give_away_the_answer_are_refused",
    },
    "docs/generated-tasks.md": {
        "No two tasks share site, start page, request and rubric": "envs/generate/test_generate.py::test_as_many_as_asked_for_and_no_two_alike",
        "that training never sees": "envs/generate/test_generate.py::test_a_world_belongs_to_one_split",
        "a smaller set is the beginning of a larger one": "envs/generate/test_generate.py::test_the_same_spec_gives_the_same_tasks_on_any_number_of_processes",
    },
    "docs/live-sites.md": {
        "They appear in no configuration, prompt, record or log": "envs/test_live_site.py::test_the_cookies_of_a_log_in",
        "so a resumed run draws the same groups": "tasks_lib/test_blocking.py::test_a_draw_that_is_done_again_leaves_out_the_same_sites",
    },
    "docs/webarena.md": {
        "programs are parsed, never run": "envs/rewards_webarena/test_webarena.py::test_programs_are_never_run_as_python",
        "unless another comparison fails": "envs/rewards_webarena/test_loop.py::test_what_hangs_on_the_unknown_abstains_and_what_fails_anyway_does_not",
    },
    "docs/contexts.md": {
        "a prompt begins with the one before and its turn": "training/test_context.py::test_an_appended_prompt_begins_with_the_one_before_and_its_turn",
        "Earlier turns go in with the token ids that were sampled": "training/test_context.py::test_turns_go_in_as_they_were_sampled",
    },
    "docs/warm-start.md": {
        "refuses a result below a gate": "flows/test_warm_start.py::test_refused_by_the_gate_then_published",
    },
    "docs/prefect.md": {
        "`prefect.yaml` deploys every flow": "flows/test_forms.py::test_every_deployment_is_of_these_flows_and_has_no_markup",
        "which `run.lock` refuses": "flows/test_flows.py::test_a_folder_in_use_is_left_alone",
        "its log says how to go on": "flows/test_flows.py::test_only_ctrl_c_is_no_crash",
    },
    "docs/algorithms.md": {
        "Values that are given lie over the preset's": "training/test_algorithms.py::test_presets_are_values_under_the_others",
        "a token's loss is `w surrogate(rho, A)`": "training/test_algorithms.py::test_every_combination_is_its_formula",
        "the mean over tokens, over steps, or over episodes (`sequence`) of a minibatch": "training/test_algorithms.py::test_aggregation_is_a_mean_over_what_it_is_named_after",
        "`raft` is 1 for a success": "training/test_algorithms.py::test_raft_trains_on_successes_alone",
        "`step_normalizer` divides it over the steps": "training/test_advantages.py::test_step_normalisers",
        "weight of the KL estimate k3 to the run's first policy": "training/trainer/test_parity.py::test_the_loss_holds_on_to_the_first_policy",
        "trains on the successes of the last four iterations": "training/test_algorithms.py::test_webgym_trains_on_successes_of_four_iterations",
        "the i-th oldest with weight `i ** replay_recency`": "training/test_algorithms.py::test_the_draw_prefers_what_is_recent",
        "leaves out steps after which the screenshot was the same": "training/test_algorithms.py::test_steps_that_changed_nothing_are_left_out",
        "An episode is counted as consumed once, in its own batch": "training/test_algorithms.py::test_webgym_trains_on_successes_of_four_iterations",
        "the effective sample size of the weights `w`": "training/test_losses.py::test_effective_sample_size_by_hand",
    },
    "docs/sites.md": {
        "own state on the server**, which grading asks": "envs/sites/test_states.py::test_one_episode_does_not_see_what_another_does",
        "load nothing from another host. Every control has a label, unique on its page": "envs/sites/test_pages.py::test_pages_are_whole_labelled_and_their_own",
        "Invalid forms get status 422 with the reason and change nothing": "envs/sites/test_pages.py::test_a_ticket_that_makes_no_sense_is_refused",
        "Names, titles, prices and extensions are unique in a world": "envs/sites/test_worlds.py::test_shop",
        "A cookie that scripts cannot read selects the database": "envs/sites/test_states.py::test_without_an_episode_nothing_is_shown",
        "which only grading reaches": "envs/sites/test_states.py::test_only_grading_gets_json",
        "`close` or the next `reset` drops the database": "envs/sites/test_states.py::test_a_site_hands_out_a_state_that_grading_can_ask",
        "is a subclass of `envs.Site` with a `name` and an `origin`": "envs/sites/test_base.py::test_a_name_and_an_origin_are_enough_for_an_episode",
    },
    "docs/extending.md": {
        "takes the functions themselves": "envs/test_extensions.py::test_own_site_importer_parser_and_reward_play_an_episode",
        "advantages and losses always, the others unless the workers are elsewhere": "envs/test_extensions.py::test_a_run_checks_the_names_before_it_starts",
        "A plain function runs in a thread, an `async` one on the event loop": "envs/test_extensions.py::test_a_plain_reward_runs_in_a_thread_an_async_one_on_the_loop",
        "Such turns have the form `custom`": "envs/test_extensions.py::test_own_site_importer_parser_and_reward_play_an_episode",
        "An entry point of a package gives a short name": "envs/test_extensions.py::test_a_reward_takes_the_place_of_the_tasks_own_or_stands_beside_it",
        "An import error names the machine": "envs/test_extensions.py::test_an_unknown_name_is_refused_with_what_is_near",
        "What it raises ends the run": "envs/test_extensions.py::test_a_reward_that_fails_ends_the_run",
        "it changes the score but not whether the episode passed": "envs/test_extensions.py::test_a_reward_takes_the_place_of_the_tasks_own_or_stands_beside_it",
        "gives several parts with evidence": "envs/test_extensions.py::test_a_class_may_give_parts_of_its_own",
        "Its name is the one that tasks give": "envs/test_extensions.py::test_what_is_found_is_checked",
        "Groups with equal rewards are dropped before": "training/test_named_algorithms.py::test_advantages_of_an_extension_enter_the_batch",
        "division by the minibatch's tokens and the entropy bonus are done for it": "training/test_named_algorithms.py::test_a_loss_of_an_extension_is_masked_and_divided",
    },
    "docs/slurm.md": {
        "is printed as one batch script, which starts the cluster and the run on it": "tasks_lib/test_cluster_spec.py::test_slurm_s_script_starts_each_machine_s_processes_and_the_run",
        "vLLM servers on other machines need a key": "tasks_lib/test_containers.py::test_a_spec_that_kubernetes_cannot_run_is_refused",
        "`partition`, `account` and `hours` of the spec become `#SBATCH` lines": "tasks_lib/test_cluster_spec.py::test_slurm_s_script_starts_each_machine_s_processes_and_the_run",
        "the second is refused by the lock": "flows/test_flows.py::test_a_folder_in_use_is_left_alone",
    },
    "docs/kubernetes.md": {
        "is printed as manifests": "tasks_lib/test_containers.py::test_what_a_dry_run_prints_can_be_submitted",
        "Pods run as user 1000, are asked for their health, and are started again": "tasks_lib/test_containers.py::test_renderings_are_the_golden_files",
        "and the Job that trains on them": "tasks_lib/test_containers.py::test_the_job_trains_with_the_settings_of_the_spec",
        "a Deployment of one vLLM server with the `model` of the group": "tasks_lib/test_containers.py::test_a_judge_is_served_for_the_run_and_its_key_is_written_nowhere",
        "in the spec leaves the manifests' server out": "tasks_lib/test_containers.py::test_a_prefect_server_of_one_s_own_is_not_started_again",
        "are tested against Kubernetes' schemas": "tasks_lib/test_containers.py::test_manifests_are_what_kubernetes_takes",
        "and the Job that Prefect's worker makes of the template": "tasks_lib/test_containers.py::test_prefect_s_workers_make_jobs_of_the_templates",
    },
    "docs/compose.md": {
        "Every flow takes storage, scheduler and trainer from it": "tasks_lib/test_containers.py::test_a_flow_s_process_is_told_its_cluster_by_a_variable",
        "Containers are started again by Docker. A rollout worker's groups go to others": "hosts/test_compose.py::test_a_run_in_containers_outlives_one_of_them",
        "leaves its flow run in the state Crashed. Start it again with the same name, and the run goes on": "hosts/test_compose.py::test_a_docker_work_pool_runs_containers_and_resumes_a_killed_one",
        "One `docker/Dockerfile` has the targets": "tasks_lib/test_containers.py::test_compose_names_services_images_and_specs_that_are_there",
    },
    "docs/scaling.md": {
        "prints every process, its machine and its command": "tasks_lib/test_cluster_spec.py::test_each_machine_gets_its_processes",
        "they are started, joined, and ended with the run": "tasks_lib/test_cluster_spec.py::test_machines_by_ssh_join_and_end_with_the_run",
        "`--set` overrules what the spec gives": "tasks_lib/test_cluster_spec.py::test_what_is_set_overrules_the_spec",
        "A process that ends during the run is started again": "tasks_lib/test_cluster_spec.py::test_machines_by_ssh_join_and_end_with_the_run",
        "With `--scheduler` each worker must see the client's files": "tasks_lib/test_machine_doctor.py::test_a_worker_with_another_storage_is_named",
        "Workers with different Chromiums are a fault": "tasks_lib/test_browser_versions.py::test_workers_with_different_browsers_are_a_fault_that_names_them",
        "asks a vLLM server of your own for its release, routes and model name": "tasks_lib/test_machine_doctor.py::test_a_vllm_server_that_a_run_cannot_use",
        "be kept out by its locks": "tasks_lib/test_machine_doctor.py::test_workers_that_locks_do_not_keep_out_or_that_differ",
        "are cut into equal shards (the last may be smaller)": "tasks_lib/test_planning.py::test_shards_hold_every_group_once",
        "names the rank that the others wait for": "training/trainer/test_link.py::test_the_rank_that_others_wait_for_is_named",
        "Each fault says what to do": "tasks_lib/test_machine_doctor.py::test_faults_are_printed_and_give_status_1",
        "is refused where a worker offers fewer, before the trainer starts": "flows/test_flows.py::test_a_cluster_with_too_few_units_is_refused_before_anything_starts",
        "with none the run ends at once": "flows/test_deployment.py::test_a_cluster_without_fitting_workers_is_refused_with_the_command",
        "is left out; its groups go to others": "tasks_lib/test_shards.py::test_a_shard_whose_worker_cannot_write_goes_to_others",
        "The updates are the same": "tasks_lib/test_trainer_nodes.py::test_two_machines_take_the_steps_of_one",
        "with a token; both ends notice within a minute that the other is gone": "training/trainer/test_link.py::test_both_sides_notice_a_link_that_stays_cut",
        "Updates equal those of one process up to rounding": "training/trainer/test_gradients.py::test_an_update_is_the_same_for_every_packing_process_count_and_stage",
        "The vision tower is frozen above 100 million parameters": "tasks_lib/test_derived.py::test_what_is_left_open_depends_on_size_and_machine",
        "Both are chosen when a run begins, and kept in its `config.json`": "tasks_lib/test_derived.py::test_the_choice_is_frozen_and_kept_on_another_machine",
    },
    "docs/own-tasks.md": {
        "of own sites it cannot know a solution, and says so": "tasks_lib/test_task_check.py::test_what_cannot_be_known_is_counted_with_its_reason",
        "`[]` takes all kinds of your file": "test_docs.py::test_the_page_of_own_tasks_works_from_its_file_to_the_start_of_a_run",
    },
    "docs/simulation.md": {
        "The same `seed` gives the same figures": "training/pacing/test_simulate.py::test_the_same_seed_gives_the_same_run",
        "Without `PREFECT_API_URL` no Prefect server is started": "tasks_lib/test_simulation.py::test_it_runs_without_a_prefect_server",
    },
}
"""By page: what it says, and a test below ``tests/``."""

LIMITS, TIMES = Limits(), ConnectionTimes()
NUMBERS: dict[str, dict[str, tuple[float, ...]]] = {
    "docs/rubrics.md": {
        "`pass_threshold` (#)": (PASS_THRESHOLD,),
        "holds from #| |`judge`": (HOLDS_SIMILAR,),
        "a model says so; holds from #": (HOLDS_JUDGED,),
        "words of a page beyond # characters, elements beyond #": (whole_page.MAX_CHARS, whole_page.MAX_ELEMENTS),
        "elements of the document beyond #, downloads of more than # s and JavaScript of more than # s": (
            end_evidence.MAX_NODES,
            end_evidence.DOWNLOAD_SECONDS,
            end_evidence.SCRIPT_SECONDS,
        ),
        "on SQLite, up to # rows and # MB": (server_state.MAX_ROWS, server_state.MAX_ROW_BYTES / 1e6),
        "without redirects, up to # MB": (site_http.MAX_ANSWER / 1e6,),
        "Each has # s": (site_http.DEADLINE,),
    },
    "docs/memory.md": {
        "a key above # characters, or a value above #": (memory.MAX_KEY, memory.MAX_VALUE),
        "# entries, and the key is new": (memory.MAX_ENTRIES,),
        "Above # entries the oldest are dropped": (memory.MAX_ENTRIES,),
    },
    "docs/browser-pool.md": {
        "replaced after # episodes or at # MB": (RETIRE_AFTER, MAX_MEMORY_MB),
        "reused for up to # episodes": (RECYCLE_AFTER,),
        "(navigation # s, input # s, others # s)": (
            LIMITS.navigation.deadline,
            LIMITS.input.deadline,
            LIMITS.screenshot.deadline,
        ),
        "sent after # s of silence": (TIMES.heartbeat,),
    },
    "docs/sampling.md": {
        "copies a set of up to # tasks": (COPIED,),
        "Of more than # tasks a fixed sample": (ALL,),
    },
    "docs/resume.md": {"up to # times an update": (RESTARTS,)},
    "docs/kubernetes.md": {"which is started again up to # times": (RUN_RESTARTS,)},
    "docs/sites.md": {
        "held out # to #, demonstrations from #, training # to #, validation from #": (
            WORLDS[Split.HELD_OUT].start,
            WORLDS[Split.HELD_OUT].stop - 1,
            WORLDS[Split.DEMO].start,
            WORLDS[Split.TRAIN].start,
            WORLDS[Split.TRAIN].stop - 1,
            WORLDS[Split.VALIDATION].start,
        ),
    },
    "docs/live-sites.md": {"doubles it, up to # times": (MAX_TIMES,)},
    "docs/webarena.md": {"for at most # s and # MB": (shop.DEADLINE, site_http.MAX_ANSWER / 1e6)},
    "docs/design2code.md": {"of more than # characters is refused": (MAX_HTML,)},
    "docs/dom-similarity.md": {"the first # nodes are compared": (capture.MAX_NODES,)},
    "docs/observation.md": {},
}
"""By page: what it says with ``#`` for numbers, and the code's numbers."""


@lru_cache
def page(name: str) -> str:
    """A page as one line."""
    return " ".join((ROOT / name).read_text().split())


@lru_cache
def functions_in(path: Path) -> frozenset[str]:
    return frozenset(
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@pytest.mark.parametrize("name", PROMISES)
def test_each_promise_stands_in_the_docs_and_has_a_test(name: str) -> None:
    for sentence, test in PROMISES[name].items():
        assert sentence in page(name), f"{name} does not say this any more: change it here too"
        file, _, function = test.partition("::")
        assert function in functions_in(ROOT / "tests" / file), f"no {test} would fail if this were not so: {sentence}"


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_in_the_docs_are_those_of_the_code(name: str) -> None:
    for sentence, numbers in NUMBERS[name].items():
        pattern = re.escape(sentence).replace(r"\#", r"([\d,.]*\d)")
        found: Any = re.search(pattern, page(name))
        assert found, f"{name} does not say this any more: {sentence}"
        assert tuple(float(each.replace(",", "")) for each in found.groups()) == numbers, sentence
