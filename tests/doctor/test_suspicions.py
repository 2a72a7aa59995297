"""What one text shows by itself, for texts that deserve it and for texts that only look like it."""

import pytest

from sixfold.doctor.suspicions import FLAGS, flags_of, is_copy, is_mojibake, script_of


def misread(text, encoding):
    return text.encode().decode(encoding)


@pytest.mark.parametrize(
    "text", ["Ein schöner Tag", "café", "it’s", "“so”", "naïve", "Łódź", "Привет", "Καλημέρα", "größer"]
)
@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_utf8_that_was_read_as_another_encoding(text, encoding):
    try:
        wrong = misread(text, encoding)
    except UnicodeDecodeError:
        pytest.skip("Windows-1252 lacks one of these bytes")
    assert is_mojibake(wrong)
    assert flags_of((wrong,)) & FLAGS["mojibake"]
    assert not flags_of((wrong,)) & FLAGS["control"]


@pytest.mark.parametrize(
    "text",
    [
        "schöner Tag",
        "»Spaß«",
        "NÃO",
        "SÃO PAULO",
        "El Niño: «mañana»",
        "Ñandú",
        "Åland",
        "Â",
        "€ 5",
        "Привет",
        "ÎLE",
        "«Ä»",
    ],
)
def test_accents_and_quotes_are_no_mojibake(text):
    assert not is_mojibake(text)
    assert flags_of((text,)) == 0


@pytest.mark.parametrize("text", ["a\x1b[31m", "a\x00", "a\rb", "a\x85b"])
def test_control_characters(text):
    assert flags_of(("good", text)) == FLAGS["control"]


@pytest.mark.parametrize("text", ["a\tb", "soft\u00adhyphen", "no\u00a0break", "wide\u3000space", "\u200bzero"])
def test_tabs_and_spaces_are_no_control_characters(text):
    assert flags_of((text,)) == 0


def test_what_could_not_be_decoded():
    assert flags_of(("a\ufffdb",)) == FLAGS["undecodable"]


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("Hello", "LATIN"),
        ("größer", "LATIN"),
        ("Привет", "CYRILLIC"),
        ("Γειά σου", "GREEK"),
        ("漢字とかな", "CJK"),
        ("안녕하세요", "HANGUL"),
        ("Windows в сети", "LATIN"),  # 7 of 12 letters
        ("Привет abc", "CYRILLIC"),
        ("abcабв", ""),  # half and half
        ("12 + 3 = 15", ""),
        ("A4", ""),
        ("", ""),
    ],
)
def test_the_script_of_most_letters(text, script):
    assert script_of(text) == script


def test_only_a_longer_text_is_a_copy():
    assert is_copy(("never translated at all", "never translated at all "))
    assert not is_copy(("LibreOffice", "LibreOffice"))  # a name
    assert not is_copy(("never translated at all", "gar nie übersetzt"))
