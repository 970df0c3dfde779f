"""A small byte-level BPE tokenizer with DeepSeek-V4's special tokens, trained on text this module makes up."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

SPECIAL_TOKENS = (  # ids 0, 1, 2 are bos, eos, pad
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜▁pad▁｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜latest_reminder｜>",
    "<｜action｜>",
    "<｜query｜>",
    "<｜authority｜>",
    "<｜domain｜>",
    "<｜title｜>",
    "<｜read_url｜>",
    "<｜fim▁begin｜>",
    "<｜fim▁hole｜>",
    "<｜fim▁end｜>",
)
TEXT_TOKENS = ("<think>", "</think>", "｜DSML｜")  # not special: the parsers look for them in the decoded text
SMALLEST_VOCABULARY = len(SPECIAL_TOKENS) + 256 + len(TEXT_TOKENS)

WORDS = """
act add air answer apple ask back base bear begin big bird black block blue board body book box branch bread bring
build burn call car care carry cat cause chair change child city class clear close cloud coat cold come cook cost
count country cover cross cup cut dark day deep door draw dream drive dry earth east eat edge end engine even eye face
fact fall farm fast father feel field fill find fire fish floor flow fly follow food foot form free friend front fruit
full game garden gate girl give glass gold good grass green ground group grow half hand hard head hear heart heat
heavy help high hill hold home horse hot hour house ice idea iron island join jump keep kind king lake land language
large last late law lay lead leaf learn leave left letter level lie life lift light line list live long look lose love
low machine main make map mark market matter mean measure meet metal middle milk mind miss moon morning mother
mountain mouth move music name near need new night north note number object ocean offer oil open order page paint
paper part pass past path pay peace people piece plain plan plane plant play point port power press prove pull push
put question quick quiet rain raise reach read reason record red rest rich ride right ring river road rock roll room
root round rule run sail salt sand save school sea season seat see seed send sense serve set shape share ship shoe
shop short show side sign silver simple sing sister sit size skin sky sleep slow small smell smile snow soft soil
sound south space speak speed spring square stand star start state stay steel step stone stop store storm story
straight stream street strong study sugar summer sun sure table tail take talk tall teach tell test thick thing think
time tool top touch town trade train tree trip true turn under use valley value view village visit voice wait walk
wall want warm wash watch water wave way weather week weight west wheel white wide wild wind window winter wish wood
word work world write year yellow young
"""
SUFFIXES = ("", "", "", "s", "ed", "ing", "er", "ly", "less", "ness")
JOINTS = (" the ", " a ", " of ", " and ", " in ", " to ", " is ", " for ", ", ", ". ", " with ", " that ")


def check_vocabulary(vocab_size: int) -> None:
    """Raise ValueError if the 256 bytes and the special tokens have no room."""
    if vocab_size < SMALLEST_VOCABULARY:
        raise ValueError(f"vocabulary: must hold at least {SMALLEST_VOCABULARY} tokens, got {vocab_size}")


def write_tokenizer(directory: Path, vocab_size: int) -> None:
    """Write tokenizer.json and tokenizer_config.json with exactly `vocab_size` tokens; the same bytes everywhere.

    Raises:
        ValueError: `vocab_size` has no room for the 256 bytes and the special tokens.
    """
    check_vocabulary(vocab_size)
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(TEXT_TOKENS),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_text(), trainer)
    missing = vocab_size - len(TEXT_TOKENS) - tokenizer.get_vocab_size()
    fill = [f"<｜place▁holder▁no▁{number}｜>" for number in range(missing)]
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in (*fill, *TEXT_TOKENS)])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "add_bos_token": False,
        "add_eos_token": False,
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[1],
        "pad_token": SPECIAL_TOKENS[2],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1048576,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    text = json.dumps(config, ensure_ascii=False, indent=1)
    (directory / "tokenizer_config.json").write_text(text + "\n")


def training_text(lines: int = 3000) -> Iterator[str]:
    """Lines of made-up prose, code and JSON, the same on every machine."""
    dice = _Dice()
    stems = WORDS.split()
    for number in range(lines):
        words = [dice.pick(stems) + dice.pick(SUFFIXES) for _ in range(8)]
        prose = "".join(word + dice.pick(JOINTS) for word in words)
        match number % 4:
            case 0:
                yield f'{{"{words[0]}": "{words[1]} {words[2]}", "{words[3]}": [{dice.roll(10**6)}, {dice.roll(100)}]}}'
            case 1:
                yield f"    def {words[0]}_{words[1]}(self, {words[2]}): return {words[3]} + {dice.roll(1000)}"
            case _:
                yield re.sub(r"^\w", lambda match: match.group().upper(), prose)


class _Dice:
    """A linear congruential generator: Python's own may change between versions."""

    def __init__(self) -> None:
        self.state = 1

    def roll(self, sides: int) -> int:
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % sides

    def pick(self, items: tuple[str, ...] | list[str]) -> str:
        return items[self.roll(len(items))]
