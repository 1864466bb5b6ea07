#!/usr/bin/env python3
"""Tests of the checks in this folder: each rule is broken once on purpose."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import check_cycles
import check_language


def language(name, text, allowed=()):
    return [rule for _, rule, _ in check_language.violations(name, text, list(allowed))]


class Language(unittest.TestCase):
    def test_a_dialect_word_in_a_comment_a_message_a_document_and_a_name(self):
        for name, text in [
            ("a.rs", "// Closes the connection of whoever asks.\n"),
            ("a.rs", 'fn a() { warn!("nobody is let in"); }\n'),
            ("a.md", "What is told to the client.\n"),
            ("a.lua", "local a = 1 -- so many keys\n"),
            ("a.proto", "// What Envoy asks.\nmessage A {}\n"),
            ("a.yml", "annotations:\n  summary: somebody floods the store\n"),
            ("a.json", '{\n  "title": "Who decides"\n}\n'),
            ("a.py", 'print("nobody listens")\n'),
            ("a.py", 'print(f"{port}: nobody listens")\n'),
            ("a.rs", "struct Asked;\n"),
            ("a.rs", "fn whoever_is_late() {}\n"),
            ("a.rs", "fn shutdown_answers_all_requests() {}\n"),
            ("a.rs", "let unanswered = 0;\n"),
            ("a.md", "The server answers at once.\n"),
            ("a.rs", "fn a_refusal_changes_nothing() {}\n"),
            ("a.rs", 'let text = "the request is refused";\n'),
            ("a.md", "A request and its answer.\n"),
            ("a.rs", "// No protocol of ours.\n"),
            ("a.rs", "let ours = 1;\n"),
            ("a.md", "A refund gives back units.\n"),
            ("a.md", "The table knows of each key.\n"),
        ]:
            self.assertTrue(language(name, text), text)

    def test_an_allowed_name_is_not_allowed_in_prose(self):
        self.assertEqual(language("a.rs", "WhenFull::Refuse;\n", ["Refuse"]), [])
        self.assertTrue(language("a.rs", "// Refuse the request.\n", ["Refuse"]))
        self.assertEqual(language("a.rs", '"Connection refused";\n', ["Connection refused"]), [])

    def test_the_opening_of_a_doc_comment(self):
        self.assertTrue(language("a.rs", "/// Whether the key exists.\nfn a() {}\n") == [])
        self.assertTrue(language("a.rs", "/// How long a call may take.\nfn a() {}\n"))

    def test_plain_text_and_allowed_phrases_pass(self):
        self.assertEqual(language("a.rs", "/// Returns the client's key.\nfn key() {}\n"), [])
        self.assertEqual(language("a.rs", 'let user = "nobody";\n', ['"nobody"']), [])
        self.assertEqual(language("a.yml", "name: nobody\nuser: anyone # a name\n"), [])
        self.assertEqual(language("a.md", "```\nwhoever asks\n```\nThe `told` field.\n"), [])


class Cycles(unittest.TestCase):
    def cycles(self, files):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "src"
            for name, text in files.items():
                file = source / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            return [cycle for _, cycle, _ in check_cycles.cycles(source)]

    def test_modules_that_import_each_other(self):
        lib = "mod a;\nmod b;\n"
        for one in ["use crate::b::B;", "use crate::{b::B};", "fn f() { super::b::g() }", "pub use self::super::b::B;"]:
            files = {"lib.rs": lib, "a.rs": one, "b.rs": "use crate::a::A;"}
            self.assertEqual(self.cycles(files), [("a", "b")], one)

    def test_a_cycle_through_a_folder_and_through_a_re_export(self):
        for export in ["pub use self::c::C;", "pub use c::C;"]:
            files = {
                "lib.rs": f"mod a;\nmod b;\nmod c;\n{export}\n",
                "a/mod.rs": "mod deep;\n",
                "a/deep.rs": "use crate::b::B;\n",
                "b.rs": "use crate::C;\n",
                "c.rs": "use crate::a::A;\n",
            }
            self.assertEqual(self.cycles(files), [("a", "b", "c")], export)

    def test_comments_strings_tests_and_parents_are_no_imports(self):
        files = {
            "lib.rs": "mod a;\nmod b;\n",
            "a.rs": '// crate::b::B\nconst T: &str = "crate::b::B";\n#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}\n',
            "b.rs": "use crate::a::A;\nuse super::Root;\n",
        }
        self.assertEqual(self.cycles(files), [])


if __name__ == "__main__":
    unittest.main(verbosity=0)
