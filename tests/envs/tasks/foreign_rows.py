"""Rows of the sets of others, written by us in their true form."""

from __future__ import annotations

from typing import Any

WEBARENA: list[dict[str, Any]] = [
    {
        "sites": ["shopping_admin"],
        "task_id": 7,
        "require_login": True,
        "storage_state": "./.auth/shopping_admin_state.json",
        "start_url": "__SHOPPING_ADMIN__",
        "geolocation": None,
        "intent_template": "Name the {{n}} items sold most in {{year}}",
        "instantiation_dict": {"n": 2, "year": 2021},
        "intent": "Name the 2 items sold most in 2021",
        "require_reset": False,
        "eval": {
            "eval_types": ["string_match"],
            "reference_answers": {"must_include": ["Band™", "Ball 65 cm"]},
            "reference_url": "",
            "program_html": [],
            "string_note": "",
            "reference_answer_raw_annotation": "Band™, Ball 65 cm",
        },
        "intent_template_id": 279,
    },
    {
        "sites": ["gitlab", "reddit"],
        "task_id": 12,
        "require_login": True,
        "storage_state": None,
        "start_url": "__GITLAB__/explore?sort=stars |AND| __REDDIT__/f/tools",
        "geolocation": {"latitude": 40.4, "longitude": -79.9},
        "intent_template": "Post {{repo}} in a forum",
        "instantiation_dict": {"repo": "x"},
        "intent": "Post x in a forum",
        "require_reset": True,
        "eval": {
            "eval_types": ["url_match", "program_html"],
            "reference_answers": None,
            "reference_url": "__REDDIT__/f/tools |OR| __REDDIT__/f/code",
            "program_html": [
                {"url": "last", "locator": "", "required_contents": {"must_include": ["x", "stars |OR| forks"]}},
                {"url": "func:last_post()", "locator": "document.title", "required_contents": {"exact_match": "x"}},
            ],
            "url_note": "GOLD in PRED",
        },
        "intent_template_id": 101,
    },
    {
        "sites": ["map"],
        "task_id": 3,
        "require_login": False,
        "storage_state": None,
        "start_url": "http://localhost:3000/search?q=a#map=5/1/2",
        "geolocation": None,
        "intent_template": "t",
        "instantiation_dict": {},
        "intent": "Is there an airport nearby?",
        "require_reset": False,
        "eval": {
            "eval_types": ["string_match"],
            "reference_answers": {"fuzzy_match": "N/A"},
            "reference_url": "",
            "program_html": [],
            "string_note": "there is none",
        },
        "intent_template_id": 5,
    },
]
WEBGYM: list[dict[str, Any]] = [
    {
        "task_name": "Find two trails near Oslo and say how long each is",
        "domain": "Travel",
        "subdomain": "Hiking",
        "website": "https://www.trails.example",
        "difficulty": 4,
        "evaluator_reference": [
            {"id": 1, "description": "Trails", "facts": ["one trail near Oslo", "another trail near Oslo"]},
            {"id": 2, "description": "Lengths", "facts": ["length of the first", "length of the second"]},
        ],
        "reference_answer": None,
        "task_id": "t-0001",
    },
    {
        "task_name": "Open the café's menu",
        "domain": "Food",
        "subdomain": "",
        "website": "cafe.example/menu?lang=en",
        "difficulty": 1,
        "evaluator_reference": ["The menu is shown"],
        "reference_answer": "menu",
    },
    {
        "task_name": "No facts here",
        "domain": "Food",
        "subdomain": "Cafés",
        "website": "https://cafe.example/",
        "difficulty": 5,
        "evaluator_reference": [],
        "reference_answer": "x",
        "task_id": 12,
    },
]
MIND2WEB: list[dict[str, Any]] = [
    {
        "annotation_id": "0000aaaa-1111-2222-3333-444455556666",
        "website": "traveller",
        "domain": "Travel",
        "subdomain": "Car rental",
        "confirmed_task": "Rent a van in Bergen",
        "action_reprs": [f"[button]  {n} -> CLICK" for n in range(6)],
        "actions": [
            {
                "action_uid": "u-1",
                "raw_html": "<html><b>one</b></html>",
                "cleaned_html": '<html backend_node_id="1"/>',
                "operation": {"op": "TYPE", "original_op": "TYPE", "value": "Bergen"},
                "pos_candidates": [{"tag": "input", "is_original_target": True, "attributes": '{"id": "x"}'}],
                "neg_candidates": [],
            }
        ],
    }
]
ONLINE: list[dict[str, Any]] = [
    {
        "task_id": f"id-{level}",
        "confirmed_task": f"A task that is {level}",
        "website": "https://www.shop.example/",
        "reference_length": length,
        "level": level,
    }
    for level, length in (("easy", 3), ("medium", 8), ("hard", 15))
]
WEBVOYAGER: list[dict[str, Any]] = [
    {
        "web_name": "Recipes",
        "id": "Recipes--0",
        "ques": "Find a soup with 4 stars",
        "web": "https://www.recipes.example/",
    },
    {
        "web_name": "Flights",
        "id": "Flights--3",
        "ques": "Fly to Oslo",
        "web": "https://www.search.example/travel/flights/",
    },
]
VERIFIED: list[dict[str, Any]] = [
    {
        "sites": ["gitlab"],
        "task_id": 9001,
        "intent_template_id": 77,
        "start_urls": ["__GITLAB__/explore"],
        "intent": "Open the page of my notes",
        "intent_template": "Open the page of my {{what}}",
        "instantiation_dict": {"what": "notes"},
        "eval": [
            {
                "evaluator": "AgentResponseEvaluator",
                "results_schema": {"type": "null"},
                "expected": {"task_type": "navigate", "status": "SUCCESS", "retrieved_data": None},
            },
            {
                "evaluator": "NetworkEventEvaluator",
                "ignored_query_params_patterns": ["page"],
                "expected": {"url": ["__GITLAB__/notes"]},
            },
        ],
        "revision": 2,
    },
    {
        "sites": ["shopping", "map"],
        "task_id": 9002,
        "intent_template_id": 78,
        "start_urls": ["__SHOPPING__", "__MAP__"],
        "intent": "Get the names of the lamps.",
        "intent_template": "Get the names of the {{what}}",
        "instantiation_dict": {"what": "lamps"},
        "eval": [
            {
                "evaluator": "AgentResponseEvaluator",
                "results_schema": {"type": "array", "items": {"type": "string"}},
                "ordered": True,
                "expected": {"task_type": "retrieve", "status": "SUCCESS", "retrieved_data": ["Harlan"]},
            }
        ],
        "revision": 1,
    },
]
"""WebArena-Verified."""

LITE: list[dict[str, Any]] = [{**WEBARENA[0], "task_id": 0, "old_task_id": 7}]
VISUAL: list[dict[str, Any]] = [
    {
        **WEBARENA[0],
        "sites": ["shopping"],
        "task_id": 3,
        "start_url": "__SHOPPING__/",
        "intent": "Show me the dearest blue lamp",
        "viewport_size": {"width": 1280},
        "eval": {
            "eval_types": ["url_match"],
            "reference_answers": None,
            "reference_url": "__SHOPPING__/blue-lamp.html",
            "program_html": [],
            "url_note": "EXACT",
        },
        "reasoning_difficulty": "medium",
        "visual_difficulty": "easy",
        "comments": "",
        "overall_difficulty": "medium",
    },
    {
        **WEBARENA[0],
        "sites": ["classifieds"],
        "task_id": 5,
        "start_url": "__CLASSIFIEDS__",
        "intent": "How many miles has the red van driven?",
        "eval": {
            "eval_types": ["string_match"],
            "reference_answers": {"required_values": [">= 12000", "< 13000 |OR| == 40000"]},
            "reference_url": "",
            "program_html": [],
        },
        "overall_difficulty": "easy",
    },
]
TIMEWARP: list[dict[str, Any]] = [
    {
        "task_id": 1,
        "intent": "In which state is Harlan?",
        "intent_template_id": 1,
        "sites": ["wiki"],
        "start_url": "__WIKI__",
        "eval": {"eval_types": ["llm_judge"], "reference_answers": {"fuzzy_match": "Kentucky"}},
    },
    {
        "task_id": 2,
        "intent": "Name the first headline.",
        "intent_template_id": 9,
        "sites": ["news"],
        "start_url": "__NEWS__/today",
        "additional_instructions": "1. Read the headline. 2. Send a message: Bridge opens",
        "eval": {"eval_types": ["exact_match"], "reference_answers": {"exact_match": "Bridge opens"}},
    },
]
REAL: list[dict[str, Any]] = [
    {
        "id": "shopnizon-1",
        "goal": "Buy a lamp for less than $22.",
        "website": {
            "id": "shopnizon",
            "name": "Shopnizon",
            "similarTo": "A shop",
            "previewImage": "/previews/shop.jpg",
            "url": "https://shopnizon.example/",
        },
        "difficulty": "easy",
        "challengeType": "action",
        "possible": True,
        "evals": [
            {
                "description": "the total is below $22",
                "type": "jmespath",
                "expected_value": True,
                "query": "order.orders[0].total < `22`",
            },
            {"type": "jmespath", "expected_value": "lamp", "query": "order.orders[0].item"},
        ],
        "points": 1,
        "config": {},
    },
    {
        "id": "shopnizon-2",
        "goal": "What does the lamp cost?",
        "website": {"id": "shopnizon", "url": "https://shopnizon.example/"},
        "evals": [
            {
                "description": "the price is right",
                "type": "llm_boolean",
                "rubric": "The answer says that it costs $20.",
                "expected_value": True,
            }
        ],
        "points": 1,
    },
]

SAMPLES = {
    "webarena": WEBARENA,
    "webarena-verified": VERIFIED,
    "webarena-lite": LITE,
    "visualwebarena": VISUAL,
    "timewarp": TIMEWARP,
    "real": REAL,
    "webgym": WEBGYM,
    "mind2web": MIND2WEB,
    "online-mind2web": ONLINE,
    "webvoyager": WEBVOYAGER,
}
