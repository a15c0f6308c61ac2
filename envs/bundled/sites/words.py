"""Words that worlds are made of: our own, plain, and without names of real people."""

from __future__ import annotations


def _split_words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def split_phrases(text: str) -> tuple[str, ...]:
    """Return the phrases of a text, which semicolons separate."""
    return tuple(text.split(";"))


FIRST_NAMES = _split_words(
    "Ada Alma Anton Bela Bruno Carla Cora Dario Dora Edgar Elin Emil Enno Fay Felix Flora Gerd Greta Hanna Hugo Ida Igor Ines Ivo Jana Jonas "
    "Judy Karl Kira Lars Lena Leon Lina Luis Mara Marek Mina Nadia Nils Nora Olga Omar Oskar Paula Petra Pia Ralf Rita Rosa Ruben Sara Silas "
    "Sofia Stan Tara Theo Tilda Tom Ulla Uma Vera Viktor Wanda Willa Xenia Yara Yusuf Zora"
)

LAST_NAMES = _split_words(
    "Abel Adler Ashby Bakker Balint Barlow Bergen Birch Blum Brandt Calder Castell Cole Corbin Dahl Dalton Decker Dorn Easton Ebner Ellery Falk "
    "Farrow Fenn Fisk Frost Gable Garner Gray Grove Hale Harden Hollis Holm Horvat Ivers Jansen Jarvis Keller Kern Kovac Lamb Lang Linde Lorne "
    "Marsh Mercer Moss Nagel Noble North Oakes Olsen Orr Parrish Penn Pohl Quade Quinn Rainer Reed Ritter Rowan Sander Seidel Shaw Stark Storm "
    "Teller Thorne Tilden Unger Vance Vogel Wade Weller Wick Wolfe Yates Zeller"
)

STREETS = split_phrases(
    "Alder Lane;Amber Road;Bell Street;Birch Avenue;Canal Walk;Cedar Close;Chapel Hill;Clover Way;Dock Street;Elm Grove;Falcon Road;Ferry Lane;"
    "Garden Row;Glen Street;Harbour Road;Hazel Court;Iron Bridge;Juniper Way;Kiln Lane;Lake View;Linden Street;Maple Drive;Market Place;Mill Road;"
    "North Quay;Oak Terrace;Orchard Row;Park Avenue;Pine Street;Quarry Road;River Walk;Rose Lane;Station Road;Stone Street;Summer Hill;"
    "Thistle Way;Tower Street;Upper Field;Valley Road;Willow Bank"
)

CITIES = _split_words(
    "Ambleford Aldmoor Brackwater Brinley Caldmere Corvale Dunhaven Eastmarsh Elmstead Fairlow Fernbridge Glenwick Greyport Harrowby Highfell "
    "Kelmouth Kingsfold Larkhill Lindale Marlow Millbrook Northam Oakhurst Penmoor Queensbay Ravenhill Redcliff Saltby Southwell Stonegate "
    "Thornbury Underhill Westerley Wickford Yarrow"
)

BRANDS = _split_words(
    "Alvera Borrow Brightby Caldo Corvin Dunmore Eastly Elmo Fennix Galder Harlan Hearthly Ionta Junova Kestrel Lumina Marlo Nordby Oakline "
    "Pellora Quill Redwick Solva Tarn Umbra Velto Wexley Yonder Zephra"
)

COLOURS = ("black", "blue", "brown", "green", "grey", "orange", "pink", "purple", "red", "silver", "white", "yellow")

MATERIALS = ("bamboo", "ceramic", "cork", "cotton", "glass", "leather", "linen", "oak", "plastic", "steel", "wool")

GOODS = {
    "Kitchen": split_phrases(
        "Kettle;Toaster;Mixing Bowl;Chopping Board;Saucepan;Teapot;Coffee Grinder;Salt Mill;Bread Knife;Baking Tray"
    ),
    "Garden": split_phrases(
        "Watering Can;Rake;Flower Pot;Bird Feeder;Garden Hose;Trowel;Wheelbarrow;Plant Stand;Pruning Shears;Garden Bench"
    ),
    "Office": split_phrases(
        "Desk Organiser;Stapler;Notebook;Pen Holder;Monitor Stand;Paper Tray;Hole Punch;Letter Opener;Calendar;Whiteboard"
    ),
    "Lighting": split_phrases(
        "Desk Lamp;Floor Lamp;Ceiling Light;Lantern;Night Light;Wall Light;Reading Light;String Lights;Spotlight;Table Lamp"
    ),
    "Travel": split_phrases(
        "Backpack;Suitcase;Travel Pillow;Wash Bag;Passport Cover;Duffel Bag;Luggage Tag;Water Bottle;Packing Cube;Umbrella"
    ),
    "Music": split_phrases(
        "Headphones;Record Player;Speaker;Music Stand;Metronome;Guitar Strap;Drumsticks;Ukulele;Tuner;Microphone"
    ),
    "Toys": split_phrases(
        "Puzzle;Kite;Yo-yo;Building Blocks;Toy Train;Spinning Top;Doll House;Marble Run;Board Game;Teddy Bear"
    ),
    "Bedroom": split_phrases(
        "Pillow;Blanket;Alarm Clock;Bed Tray;Mattress Topper;Duvet Cover;Wardrobe;Bedside Table;Laundry Basket;Mirror"
    ),
    "Sport": split_phrases(
        "Yoga Mat;Skipping Rope;Dumbbell;Tennis Racket;Football;Swimming Goggles;Climbing Rope;Cycling Gloves;Foam Roller;Stopwatch"
    ),
    "Bathroom": split_phrases(
        "Soap Dish;Towel;Bath Mat;Shower Caddy;Toothbrush Holder;Bathrobe;Shaving Mirror;Sponge;Towel Rail;Storage Jar"
    ),
}
"""Products by the shop's categories; no product is in two of them."""

PROJECTS = _split_words(
    "Atlas Beacon Cascade Delta Ember Fjord Granite Harbor Indigo Juniper Keystone Lagoon Meadow Nimbus Orchid Prairie Quartz Ridge Summit "
    "Tundra Umber Vista Willow Zenith"
)

PROBLEMS = split_phrases(
    "crashes on start;shows the wrong date;is slow to load;loses unsaved changes;ignores the filter;sends mail twice;cuts off long names;"
    "fails without a network;sorts in the wrong order;forgets the language;hides the last row;prints a blank page;rejects valid input;"
    "leaks memory;rounds totals badly;shows an old logo;does not scroll;opens the wrong link;needs a clearer message;has no undo;"
    "overlaps the menu;misses a translation;breaks on small screens;logs out too early"
)

FEATURES = split_phrases(
    "Export dialog;Login page;Search box;Report view;Settings page;Profile editor;Calendar widget;Invoice form;Upload panel;Dashboard;"
    "Notification list;Help page;Sign-up form;Price table;Chat window;Map view;File browser;Backup job;Import wizard;Address book;Audit log;"
    "Billing page;Print preview;Shortcut menu;Theme switch;Time picker;Tag editor;Team page;Video player;Welcome tour"
)

LABELS = ("backend", "bug", "design", "docs", "feature", "mobile", "performance", "security")

DEPARTMENTS = _split_words(
    "Accounting Archives Design Engineering Facilities Legal Logistics Marketing Planning Purchasing Research Safety Sales Support Training"
)

ROLES = split_phrases(
    "Analyst;Assistant;Auditor;Buyer;Clerk;Coordinator;Developer;Editor;Engineer;Inspector;Instructor;Librarian;Planner;Researcher;Specialist;"
    "Technician;Translator;Writer"
)

OFFICES = split_phrases(
    "Anchor House;Beech Tower;Copper Hall;Dove Court;East Wing;Foundry;Gallery;Hill House;Island Pier;Lantern Works;Mill Loft;Old Mint"
)

LANGUAGES = (
    "Arabic",
    "Danish",
    "Dutch",
    "Finnish",
    "Greek",
    "Hindi",
    "Italian",
    "Korean",
    "Polish",
    "Spanish",
    "Swahili",
    "Turkish",
)
