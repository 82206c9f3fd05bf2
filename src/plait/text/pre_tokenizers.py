"""Pre-tokenizers: how byte-level vocabularies cut text before merging, by the names that GGUF files give them.

Owns the table of names. Knows nothing about tokens. Invariant: an entry cuts as the tokenizer that the model was
trained with where that is known, otherwise as llama.cpp does; a name that needs more than cutting is not in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How one family of models cuts text, and the habits that go with it."""

    cuts: Callable[[], pre_tokenizers.PreTokenizer]
    nfc: bool = False
    """Text is brought to Unicode normal form C first."""
    whole_words: bool = False
    """A word that is a token is taken whole, even if no sequence of merges leads there."""
    add_bos: bool = False
    """A begin-of-text token is put in front where the file does not say."""


# Letters of scripts that have capitals, by the Unicode version that DeepSeek's first models were trained with.
_CASED = (
    r"A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}"
    r"\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}"
    r"\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}"
    r"\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}"
    r"\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}"
    r"\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}"
    r"\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}"
    r"\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}"
    r"\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}"
    r"\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}"
    r"\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}"
    r"\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}"
    r"\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}"
)
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_ASCII_MARKS = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_HAN_AND_KANA = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"
_HAN_TO_HANGUL = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+"
_WIDE_MARKS = r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_NO_LETTER = r"[^\r\n\p{L}\p{N}]?"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|]+"
_SENTENCES = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+"


def _words(digits: str, spaces: str = _SPACES, endings: str = rf"{_ENDINGS}|") -> str:
    """The pattern of GPT-4 and those that changed little in it."""
    return rf"{endings}{_NO_LETTER}\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{spaces}"


def _cased_words(digits: str, endings: str) -> str:
    """The pattern of GPT-4o: words are also cut where a capital follows a small letter."""
    one = rf"{_NO_LETTER}[{_UPPER}]*[{_LOWER}]+{endings}"
    other = rf"{_NO_LETTER}[{_UPPER}]+[{_LOWER}]*{endings}"
    return rf"{one}|{other}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


def _marked_words(tail: str) -> str:
    """The pattern of DeepSeek-V3: letters keep the marks that combine with them."""
    letters = r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    return rf"{_ASCII_MARKS}[A-Za-z]+|{letters}| ?[\p{{P}}\p{{S}}]+{tail}|\s+(?!\S)|\s+"


def _cut_by(*patterns: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    """One pattern after the other cuts what the ones before have left in one piece."""

    def cuts() -> pre_tokenizers.PreTokenizer:
        steps: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]
        return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    return cuts


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _digit_by_digit() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


_DEEPSEEK_3 = PreTokenizer(_cut_by(r"\p{N}{1,3}", _HAN_AND_KANA, _marked_words(r"[\r\n]*|\s*[\r\n]+")))
_QWEN_CUTS = _cut_by(_words(r"\p{N}"))
_MARKED_QWEN = rf"{_ENDINGS}|{_NO_LETTER}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
_JAIS_SPACES = r"\s*[\r\n]+|" + "".join(rf"\s{{{size}}}(?!\S)|" for size in (512, 256, 128, 64, 32, 16, 8, 4))
_YOUTU_SCRIPTS = (
    r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}"
    r"\x{FF0C}\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+|[\x{3105}-\x{312F}]+|" + _HAN_AND_KANA
)
_EXAONE_MOE = (
    rf"{_ENDINGS}|{_NO_LETTER}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_BAILING = (
    rf"'(?i:[sdmt]|ll|ve|re)|{_NO_LETTER}+\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
_SEED = rf"{_ENDINGS}|{_NO_LETTER}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_CHAMELEON = (
    *("<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}"),
    *(r"[\p{P}!-/:-@\[-`{-~]", _GPT2),
)

_FAMILIES: tuple[tuple[tuple[str, ...], PreTokenizer], ...] = (
    (("default",), PreTokenizer(_cut_by(_PUNCTUATION, _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))),
    (
        (
            *("gpt-2", "phi-2", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "gigachat", "a.x-4.0", "mellum"),
            *("modern-bert", "exaone4", "jais", "trillion", "granite-docling"),
        ),
        PreTokenizer(_gpt2),
    ),
    (("mpt", "olmo"), PreTokenizer(_gpt2, nfc=True)),
    (
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
        PreTokenizer(_cut_by(_words(r"\p{N}{1,3}")), whole_words=True, add_bos=True),
    ),
    (("dbrx", "smaug-bpe", "chatglm-bpe"), PreTokenizer(_cut_by(_words(r"\p{N}{1,3}")))),
    (("glm4", "glm5"), PreTokenizer(_cut_by(_words(r"\p{N}{1,3}")), whole_words=True)),
    (("jais-2",), PreTokenizer(_cut_by(_words(r"\p{N}{1,3}", rf"{_JAIS_SPACES}\s{{1,2}}(?!\S)|\s{{1}}")))),
    (("minicpm5",), PreTokenizer(_cut_by(r"\p{N}{1,3}", _words(r"\p{N}+")), whole_words=True)),
    (("qwen2",), PreTokenizer(_QWEN_CUTS, nfc=True)),
    (("qwen35",), PreTokenizer(_cut_by(_MARKED_QWEN), nfc=True)),
    (
        ("deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"),
        PreTokenizer(_QWEN_CUTS),
    ),
    (("laguna",), PreTokenizer(_cut_by(r"[^\n]+|[\n]+", _words(r"\p{N}")))),
    (("ufakzeka",), PreTokenizer(_cut_by(_words(r"\p{N}", endings="")))),
    (("seed-coder",), PreTokenizer(_cut_by(_SEED))),
    (("bailingmoe", "bailingmoe2", "llada-moe"), PreTokenizer(_cut_by(_BAILING))),
    (("exaone-moe",), PreTokenizer(_cut_by(_EXAONE_MOE))),
    (("smollm", "starcoder", "refact", "codeshell", "exaone"), PreTokenizer(_digit_by_digit)),
    (("minerva-7b", "mellum2"), PreTokenizer(_digit_by_digit)),
    (("command-r",), PreTokenizer(_digit_by_digit, nfc=True)),
    (("falcon",), PreTokenizer(_cut_by(r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"))),
    (
        ("deepseek-llm",),
        PreTokenizer(
            _cut_by(r"[\r\n]", rf"\s?[{_CASED}]+", _WIDE_MARKS, r"\s+$", _HAN_TO_HANGUL, r"\p{N}+"),
        ),
    ),
    (
        ("deepseek-coder",),
        PreTokenizer(_cut_by(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_TO_HANGUL, r"\p{N}")),
    ),
    (("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _DEEPSEEK_3),
    (
        ("spark2_5",),
        PreTokenizer(_cut_by(r"\p{N}{1,3}", _HAN_AND_KANA, _marked_words(r"|[\r\n]"), r"\p{N}")),
    ),
    (
        ("youtu",),
        PreTokenizer(_cut_by(_YOUTU_SCRIPTS, _cased_words(r"\p{N}", rf"{_ENDINGS}?")), whole_words=True),
    ),
    (("tekken",), PreTokenizer(_cut_by(_cased_words(r"\p{N}", "")), whole_words=True, add_bos=True)),
    (
        ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"),
        PreTokenizer(_cut_by(_cased_words(r"\p{N}{1,3}", rf"{_ENDINGS}?"))),
    ),
    (
        ("granite-embed-multi-97m",),
        PreTokenizer(_cut_by(_cased_words(r"\p{N}{1,3}", rf"{_ENDINGS}?")), whole_words=True),
    ),
    (
        ("tiny_aya", "cohere2moe"),
        PreTokenizer(_cut_by(r"\d{1,3}(?=(?:\d{3})*\b)", _cased_words(r"\p{N}{1,3}", rf"{_ENDINGS}?"))),
    ),
    (("poro-chat", "bloom", "gpt3-finnish"), PreTokenizer(_cut_by(_SENTENCES))),
    (("viking",), PreTokenizer(_cut_by(_SENTENCES, r"\p{N}"))),
    (("superbpe",), PreTokenizer(_cut_by(r"\p{N}+", r"(?=(\d{3})+(?!\d))"))),
    (("chameleon",), PreTokenizer(_cut_by(*_CHAMELEON), add_bos=True)),
)


def _by_name() -> Iterator[tuple[str, PreTokenizer]]:
    for names, family in _FAMILIES:
        for name in names:
            yield name, family


PRE_TOKENIZERS: Mapping[str, PreTokenizer] = dict(_by_name())
FALLBACK = "default"
"""Used for files from before April 2024, which do not name their pre-tokenizer; the same choice as llama.cpp's."""
NEEDS_MORE: Mapping[str, str] = {
    "afmoe": "it groups digits from the right",
    "gemma4": "it merges text and not bytes",
    "granite-embed-multi-311m": "it merges text and not bytes",
    "sarvam-moe": "it merges text and not bytes",
    "whitespace": "it merges text and not bytes",
    "kimi-k2": "its files have no merges",
    "jina-v1-en": "it frames texts with separators",
    "jina-v2-code": "it frames texts with separators",
    "roberta-bpe": "it frames texts with separators",
}
"""Names that llama.cpp knows too, and why they are not in the table."""
