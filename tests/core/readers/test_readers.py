"""Files of other programs are read with nothing lost: the tests write each form, and compare characters and labels."""

import csv
import gzip
import io
import json
import zipfile
from pathlib import Path

import pytest
import spacy
import srsly
from hypothesis import given, settings
from hypothesis import strategies as st
from spacy.tokens import Doc, DocBin

from thinc_torchopt.core.errors import ConfigError
from thinc_torchopt.core.readers import Texts, read_docs, rows_at
from thinc_torchopt.core.readers.rows import spans_of

NLP = spacy.blank("xx")
ROWS = srsly.read_yaml(Path(__file__).with_name("files.yaml"))
LABELS = ["PER", "Größe", "β", "a b"]
# Scripts from left and right, emoji, combining marks, and what JSON and CSV write in other ways.
WORDS = st.text(st.sampled_from("aZé的שم😀🇩é'\"\\-_/,;|\t0"), min_size=1, max_size=6).filter(
    lambda word: word.strip() == word and "\t" not in word
)


@st.composite
def annotated(draw):
    """Words, with entities as (first, last + 1, label), and a category. Each word has a letter that no other has: else
    nobody could tell whether a browser counted the characters.
    """
    words = [chr(0x10400 + i) + word for i, word in enumerate(draw(st.lists(WORDS, min_size=1, max_size=8)))]
    ents, at = [], 0
    while at < len(words):
        end = draw(st.integers(at + 1, len(words)))
        if draw(st.booleans()):
            ents.append((at, end, draw(st.sampled_from(LABELS))))
        at = end
    return words, ents, draw(st.sampled_from(LABELS))


corpora = st.lists(annotated(), min_size=1, max_size=4)


def text_and_spans(words, ents):
    begins = [sum(len(word) + 1 for word in words[:i]) for i in range(len(words))]
    return " ".join(words), [(begins[a], begins[b - 1] + len(words[b - 1]), label) for a, b, label in ents]


def utf16(text, place):
    return len(text[:place].encode("utf-16-le")) // 2


def lines(rows):
    return "\n".join(json.dumps(row, ensure_ascii=len(str(row)) % 2 == 0) for row in rows) + "\n"


def prodigy(texts):
    return lines(
        {"text": text, "spans": [{"start": a, "end": b, "label": c} for a, b, c in spans], "answer": "accept"}
        for text, spans in texts
    )


def prodigy_with_tokens(texts):
    rows = []
    for text, spans in texts:
        tokens = [{"text": word, "id": i, "ws": True} for i, word in enumerate(text.split(" "))]
        tokens[-1]["ws"] = False
        rows.append(
            {"text": text, "tokens": tokens, "spans": [{"start": a, "end": b, "label": c} for a, b, c in spans]}
        )
    return lines(rows)


def doccano(texts):
    return lines(
        {"id": 1, "text": text, "label": [list(span) for span in spans], "Comments": []} for text, spans in texts
    )


def doccano_objects(texts):
    rows = [
        {"text": text, "entities": [{"id": 1, "start_offset": a, "end_offset": b, "label": c} for a, b, c in spans]}
        for text, spans in texts
    ]
    return lines({**row, "relations": []} for row in rows)


def label_studio(texts):
    def result(text, a, b, label):  # a browser counts the two halves of a surrogate pair
        value = {"start": utf16(text, a), "end": utf16(text, b), "text": text[a:b], "labels": [label]}
        return {"from_name": "label", "to_name": "text", "type": "labels", "value": value}

    tasks = [
        {
            "id": 1,
            "data": {"text": text, "source": f"of {text}"},
            "annotations": [
                {"was_cancelled": True, "result": []},
                {"was_cancelled": False, "result": [result(text, *span) for span in spans]},
            ],
        }
        for text, spans in texts
    ]
    return json.dumps(tasks, indent=1)


def tuples(texts):
    return json.dumps([[text, {"entities": spans}] for text, spans in texts])


def annotator_of_tuples(texts):
    return json.dumps({"classes": LABELS, "annotations": [[text, {"entities": spans}] for text, spans in texts]})


def records(texts):
    return lines({"text": text, "entities": spans} for text, spans in texts)


def table(texts):
    file = io.StringIO()
    rows = csv.writer(file)
    rows.writerow(["id", "text", "start", "end", "label"])
    for text, spans in texts:
        rows.writerows([1, text, *span] for span in spans or [("", "", "")])
    return file.getvalue()


def iob2(words, ents):
    tags = ["O"] * len(words)
    for a, b, label in ents:
        tags[a:b] = [f"B-{label}", *[f"I-{label}"] * (b - a - 1)]
    return tags


def iob1(words, ents):
    tags, end, before = ["O"] * len(words), 0, None
    for a, b, label in ents:
        tags[a:b] = [f"I-{label}"] * (b - a)
        if end == a and before == label:
            tags[a] = f"B-{label}"
        end, before = b, label
    return tags


def biluo(words, ents):
    tags = iob2(words, ents)
    for a, b, label in ents:
        tags[b - 1] = f"L-{label}" if b - a > 1 else f"U-{label}"
    return tags


def bioes(words, ents):
    return [tag.replace("L-", "E-", 1).replace("U-", "S-", 1) for tag in biluo(words, ents)]


SCHEMES = [iob1, iob2, biluo, bioes]


@pytest.mark.parametrize("scheme", SCHEMES)
@given(annotated())
def test_tags_of_each_scheme(scheme, text):
    words, ents, _ = text
    assert list(spans_of(scheme(words, ents))) == ents


@pytest.mark.parametrize(
    "write",
    [
        *(prodigy, prodigy_with_tokens, doccano, doccano_objects, label_studio),
        *(tuples, annotator_of_tuples, records, table),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
@settings(max_examples=25)
@given(corpora)
def test_readers_keep_characters_and_labels(write, encoding, tmp_path_factory, corpus):
    texts = list(dict((text_and_spans(words, ents)) for words, ents, _ in corpus).items())
    path = tmp_path_factory.mktemp("x") / "texts"
    path.write_bytes(write(texts).encode(encoding))
    # A tokenizer that cuts at white space alone, so each span fits.
    nlp = spacy.blank("xx")
    nlp.tokenizer = lambda text: Doc(nlp.vocab, words=text.split(" "), spaces=[True] * text.count(" ") + [False])
    docs, told = read_docs(nlp, path)
    found = [(doc.text, [(ent.start_char, ent.end_char, ent.label_) for ent in doc.ents]) for doc in docs]
    assert found == texts and told.texts == told.annotated == len(texts)
    assert not told.misfits.counts and set(told.unused) <= {"id"} and all(doc.has_annotation("ENT_IOB") for doc in docs)


def columns(corpus, scheme):
    return "\n".join("".join(f"{w}\t{t}\n" for w, t in zip(words, scheme(words, e))) for words, e, _ in corpus)


def conll_2003(corpus, scheme):
    found = ["-DOCSTART- -X- -X- O\n\n"]
    for words, ents, _ in corpus:
        tags = [tag.replace("a b", "c") for tag in scheme(words, ents)]
        found.append("".join(f"{word} NN I-NP {tag}\n" for word, tag in zip(words, tags)))
        found.append("\n-DOCSTART- -X- -X- O\n\n")
    return "".join(found)


def hugging_face(corpus, scheme):
    return lines({"id": "0", "tokens": words, "ner_tags": scheme(words, ents)} for words, ents, _ in corpus)


@pytest.mark.parametrize("write", [columns, conll_2003, hugging_face])
@pytest.mark.parametrize("scheme", SCHEMES)
@settings(max_examples=25)
@given(corpora.filter(lambda corpus: any(ents for _, ents, _ in corpus)))
def test_readers_of_tagged_words(write, scheme, tmp_path_factory, corpus):
    path = tmp_path_factory.mktemp("x") / "texts"
    path.write_text(write(corpus, scheme).replace("\n", "\r\n" if len(corpus) % 2 else "\n"), "utf8", newline="")
    docs, _ = read_docs(NLP, path)
    one = (lambda label: label.replace("a b", "c")) if write is conll_2003 else str
    found = [([t.text for t in doc], [(e.start, e.end, e.label_) for e in doc.ents]) for doc in docs]
    assert found == [(words, [(a, b, one(label)) for a, b, label in ents]) for words, ents, _ in corpus]


def classes_of_table(rows):
    file = io.StringIO()
    csv.writer(file, delimiter=";").writerows([["Text", "Label"], *rows])
    return file.getvalue()


CLASSES = {
    "a table": classes_of_table,
    "doccano": lambda rows: lines({"text": text, "label": [label]} for text, label in rows),
    "Hugging Face": lambda rows: lines({"text": text, "label": label} for text, label in rows),
    "Prodigy": lambda rows: lines(
        {"text": text, "accept": [label], "options": [{"id": one} for one in LABELS], "answer": "accept"}
        for text, label in rows
    ),
    "Label Studio": lambda rows: json.dumps(
        [
            {"data": {"mine": text}, "annotations": [{"result": [{"type": "choices", "value": {"choices": [label]}}]}]}
            for text, label in rows
        ]
    ),
    "flags": lambda rows: "\n".join(
        [
            "text\t" + "\t".join(LABELS),
            *(f"{i}\t" + "\t".join(str(int(one == label)) for one in LABELS) for i, label in rows),
        ]
    ),
}


@pytest.mark.parametrize("form", CLASSES)
@settings(max_examples=25)
@given(corpora)
def test_readers_keep_classes(form, tmp_path_factory, corpus):
    rows = list({" ".join(words): label for words, _, label in corpus}.items())
    if form == "flags":
        rows = [(f"text {i}", label) for i, (_, label) in enumerate(rows)]
    path = tmp_path_factory.mktemp("x") / "texts"
    path.write_text(CLASSES[form](rows), "utf8", newline="")
    docs, _ = read_docs(NLP, path)
    assert [(doc.text, [name for name, value in doc.cats.items() if value]) for doc in docs] == [
        (text, [label]) for text, label in rows
    ]
    assert len({tuple(sorted(doc.cats)) for doc in docs}) == 1


TEXT = {"text": "Anna flew to Oslo.", "label": [[0, 4, "PER"]]}


def read(tmp_path, content, name="texts.txt", **settings):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode(errors="surrogatepass"))
    docs, told = read_docs(NLP, path, **settings)
    return docs, [*told.lines(), *told.found.lines()]


@pytest.mark.parametrize(("content", "said"), map(dict.values, ROWS["misfits"]))
def test_readers_tell_what_does_not_fit(tmp_path, content, said):
    _, told = read(tmp_path, content)
    assert any(said in line for line in told), told


@pytest.mark.parametrize(("misaligned", "found"), [("expand", ["flew"]), ("contract", []), ("drop", [])])
def test_readers_of_spans_within_tokens(tmp_path, misaligned, found):
    docs, told = read(tmp_path, lines([{"text": "Anna flew", "label": [[5, 7, "X"]]}]), misaligned=misaligned)
    assert [ent.text for ent in docs[0].ents] == found
    assert any(f"Spans that begin or end within a token ({misaligned}): 1" in line for line in told)


def test_readers_keep_the_longest_of_few_overlapping_spans(tmp_path):
    rows = [{"text": f"{i} x", "label": [[0, len(str(i)), "N"]]} for i in range(98)]
    docs, told = read(tmp_path, lines([*rows, {"text": "a b", "label": [[0, 1, "A"], [0, 3, "B"]]}]))
    assert [ent.label_ for ent in docs[-1].ents] == ["B"] and "sc" not in docs[-1].spans
    assert any(line == "Overlapping spans (the longest stay): 1." for line in told)


def test_readers_of_numbers_for_names(tmp_path):
    row = lines([{"tokens": ["Anna", "flew"], "ner_tags": [1, 0]}])
    with pytest.raises(ConfigError, match=r"expected names in 'ner_tags', found numbers.*dataset_info\.json"):
        read(tmp_path, row)
    about = {"features": {"ner_tags": {"feature": {"names": ["O", "B-PER"]}, "_type": "Sequence"}}}
    about["features"]["label"] = {"names": ["NEG", "POS"], "_type": "ClassLabel"}
    (tmp_path / "dataset_info.json").write_text(json.dumps(about))
    docs, told = read(tmp_path, row)
    assert [ent.label_ for ent in docs[0].ents] == ["PER"] and not any("no known form" in line for line in told)
    docs, _ = read(tmp_path, lines({"text": f"text {i}", "label": i} for i in (1, 0, -1, 2)))
    assert [doc.cats for doc in docs] == [{"NEG": 0.0, "POS": 1.0}, {"NEG": 1.0, "POS": 0.0}, {}, {}]


def test_readers_of_folders_and_archives(tmp_path):
    """Also of brat: offsets count both characters of a Windows line end."""
    folder = tmp_path / "all"
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"Anna flew\r\nto Oslo.")
    (folder / "a.ann").write_text(
        "T1\tPER 0 4\tAnna\nT4\tGOAL 5 13\tflew to\nT2\tGPE 14 18\tOslo\nT3\tX 0 4;5 9\tAnna flew\nR1\tOf a:T1 b:T2\n"
    )
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines([TEXT]).encode()))
    (folder / "LICENSE").write_text("Do as you like.")
    (folder / "config.cfg").write_text("[paths]\ntrain = null\n")
    (folder / "logo.png").write_bytes(b"\x89PNG\0" + bytes(range(256)))
    (folder / ".hidden").write_text("{")
    doc = NLP("No.")
    doc.user_data["from"] = "me"
    DocBin(docs=[doc], store_user_data=True).to_disk(folder / "c.spacy")
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for file in folder.iterdir():
            archive.write(file, f"../../{file.name}")
    for path in (folder, tmp_path / "all.zip"):
        docs, told = read_docs(NLP, path)
        assert [doc.text for doc in docs] == ["Anna flew\r\nto Oslo.", "Anna flew to Oslo.", "No."]
        assert [(ent.text, ent.label_) for ent in docs[0].ents] == [
            ("Anna", "PER"),
            ("flew\r\nto", "GOAL"),
            ("Oslo", "GPE"),
        ]
        assert docs[2].user_data == {"from": "me"} and all(doc.vocab is NLP.vocab for doc in docs)
        assert told.misfits.counts == {"Files of no known form": 3}
        assert set(told.unused) == {"entities in several parts", "lines that begin with R"}
    docs, _ = read_docs(NLP, folder / "a.ann")
    assert len(docs) == 1 and not (tmp_path.parent / "a.txt").exists()


@pytest.mark.parametrize(("content", "ents", "cats"), map(dict.values, ROWS["variants"]))
def test_readers_of_variants(tmp_path, content, ents, cats):
    docs, _ = read(tmp_path, content)
    assert [[ent.text for ent in doc.ents] for doc in docs] == ents
    assert [doc.cats for doc in docs] == cats


@pytest.mark.parametrize(("content", "words", "tags", "sents"), map(dict.values, ROWS["words"]))
def test_readers_of_words(tmp_path, content, words, tags, sents):
    docs, _ = read(tmp_path, content)
    assert [token.text for token in docs[0]] == words and [token.tag_ for token in docs[0]] == (
        tags or [""] * len(words)
    )
    found = [len(list(doc.sents)) if doc.has_annotation("SENT_START") or len(doc) == 1 else None for doc in docs]
    assert found == (sents or [None if len(doc) > 1 else 1 for doc in docs])


@pytest.mark.parametrize("content", ["a O\nb B-X\n\n\nc O\n", "a|O b|B-X\n\n\n\nc|O\n"])
def test_readers_know_the_lines_of_texts(tmp_path, content):
    (tmp_path / "texts").write_text(content)
    assert [row.place for row in rows_at(tmp_path / "texts")[1]] == ["line 1", "line 5"]


def test_readers_of_spacys_older_forms(tmp_path):
    tokens = [{"orth": "Anna", "ner": "U-PER", "tag": "N"}, {"orth": "flew", "ner": "O", "tag": "V"}]
    v2 = [{"id": 0, "paragraphs": [{"raw": "Anna flew", "sentences": [{"tokens": tokens}]}]}]
    doc = read(tmp_path, json.dumps(v2))[0][0]
    assert [(t.text, t.tag_, t.ent_type_) for t in doc] == [("Anna", "N", "PER"), ("flew", "V", "")]
    tree = "1\tIt\tit\tPRON\tPRP\t_\t2\tnsubj\t_\t_\n2\trains\train\tVERB\tVBZ\t_\t0\troot\t_\tSpaceAfter=No\n"
    assert len(read(tmp_path, f"{tree}\n{tree}")[0]) == 2
    docs = read(tmp_path, f"# newdoc\n# text = It rains\n{tree}\n{tree}\n# newdoc\n{tree}\n")[0]
    assert [len(list(doc.sents)) for doc in docs] == [2, 1] and docs[0][0].dep_ == "nsubj"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        *map(dict.values, ROWS["errors"]),
        (b"\0" * 99, "found a byte at 98 that is not"),
        (b"\xff\xfe\x00", "expected text in UTF-8 or UTF-16, found a byte at"),
        ("text,label\ncaf\xe9,x\n".encode("latin-1"), "found a byte at 14 that is not. Save the file as UTF-8"),
        ("[" * 100_000, "in line 1, found '' (maximum recursion depth"),
        ("a O\nb B-X\nc\n" + "d O\n" * 20, "expected 2 columns in line 3, as in most lines, found 1"),
        (b"\x78\x9cxx", "expected spaCy's binary format"),
        (gzip.compress(lines([TEXT]).encode(), mtime=0)[:30], "Is the file damaged, or cut off?"),
        (b"PK\x03\x04xxxx", "Is the file damaged, or cut off?"),
        ("a B-X\n" * 9 + "b NN\n", "in a form that is known"),
        ("a O\n" * 9 + "b\n", "in a form that is known"),
        ("a|O " * 9 + "b", "in a form that is known"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, content, said):
    with pytest.raises(ConfigError) as error:
        read(tmp_path, content)
    assert said in str(error.value) and "\n" not in str(error.value)


DAMAGED = [
    write([("Anna 😀 flew.", [(0, 4, "PER")])]).encode() for write in (prodigy, doccano, label_studio, tuples, table)
]
DAMAGED += [b"-DOCSTART- -X- O\n\nEU NN B-ORG\nx NN O\n\n", b"I|O like|O York|B-GPE\n"]


@given(st.sampled_from(DAMAGED), st.data())
@settings(max_examples=200)
def test_files_that_are_damaged_anywhere(tmp_path_factory, content, data):
    """They are read, with an account of it, or refused in one line."""
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at : at + data.draw(st.integers(0, 3))] = data.draw(
            st.sampled_from([b"", b"\0", b'"', b"[", b"NaN", b"\n", b"|"])
        )
    path = tmp_path_factory.mktemp("x") / "texts"
    path.write_bytes(bytes(damaged[: data.draw(st.integers(1, len(damaged)))]) if damaged else b"")
    try:
        docs, told = read_docs(NLP, path)
    except ConfigError as error:
        assert "\n" not in str(error)
    else:
        assert len(docs) == told.texts > 0 and all(map(str.strip, told.lines()))


def test_tables_of_long_texts_and_of_numbers_that_pandas_writes(tmp_path):
    long, before = "word " * 60_000, csv.field_size_limit()
    docs, told = read(tmp_path, f"text,start,end,label\n{long},0.0,4.0,A\n{long},5.5,9,B\nx,,,\n")
    assert csv.field_size_limit() == before and [ent.text for ent in docs[0].ents] == ["word"]
    assert "Spans beyond the text: 1 ('5.5 to 9, B')." in told


def test_files_that_are_too_large(tmp_path, monkeypatch):
    """Archives too: zeros of many gigabytes are packed into a few kilobytes."""
    monkeypatch.setattr("thinc_torchopt.core.readers.files._MOST_OF_FILE", 2_000_000)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", bytes(3_000_000))
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(3_000_000)))
    (tmp_path / "long").write_bytes(b"x" * 3_000_000)
    (tmp_path / "two").mkdir()
    for name in "ab":
        (tmp_path / "two" / name).write_bytes(b"{}" + b" " * 1_500_000)
    monkeypatch.setattr("thinc_torchopt.core.readers.files._MOST", 2_999_999)
    for name in ("bomb.zip", "bomb.gz", "long", "two"):
        with pytest.raises(ConfigError, match="expected at most 2 MB, found more"):
            read_docs(NLP, tmp_path / name)
    with pytest.raises(ConfigError, match="there is no such file"):
        read_docs(NLP, tmp_path / "none")


def test_texts_is_a_reader_of_files_that_grow(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text(lines([TEXT]))
    reader = Texts(str(path))
    assert len(list(reader(NLP))) == 1
    path.write_text(lines([TEXT, {"words": ["a", "b"], "tags": ["X", "Y"]}]))
    examples = list(reader(NLP))
    assert [[token.text for token in example.predicted] for example in examples][1] == ["a", "b"]
    assert examples[0].reference.ents[0].label_ == "PER" and not examples[0].predicted.ents
    with pytest.raises(ConfigError, match=r"'misaligned' in the block of .*: expected 'expand', 'contract' or 'drop'"):
        Texts(str(path), misaligned="x")
