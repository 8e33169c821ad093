# Makes python-lines.json (python3 python-lines.py > python-lines.json): what CPython makes of texts, read as the WikiText2 class reads them.
import json, os, sys, tempfile
spaces = [c for c in range(0x10000) if not 0xD800 <= c <= 0xDFFF and len(('a' + chr(c) + 'b').split()) == 2]
assert not [c for c in range(0x10000, 0x110000) if chr(c).isspace()]
texts = ['', '\n', '\n\n', ' ', ' \t', 'a', 'a\n', 'a\nb', 'a b\n\nb a\n', '\ra', 'a\r', 'a\r\nb', 'a\r\n', 'a\r\r\nb\n\r\nc', 'a\n\rb',
  'a\r \nb', '\r\n\r\n', 'a\x1cb\x1db\x1eb\x1fa', 'a\x85b', 'a\xa0b', 'a\u2028b\u2029c\n', 'a\x0bb\x0cc', '\ufeffa b\n\ufeffa', 'a\u200bb', 'a\u180eb',
  'a\u3000b\u2003c', '<eos> a\n<eos>', 'e\u0301 \u00e9 \U0001f40b\U0001f40b \U0001f40b', 'a\x00b', '__proto__ constructor a', '\ufffd a']
def ids(text):
    with tempfile.NamedTemporaryFile(delete=False) as f: f.write(text.encode('utf8'))
    words, out = {}, []
    with open(f.name, encoding='utf8') as lines:
        for line in lines:
            for w in line.split() + ['<eos>']: out.append(words.setdefault(w, len(words)))
    os.unlink(f.name)
    return {'text': text, 'ids': out, 'words': list(words)}
print(json.dumps({'python': sys.version.split()[0], 'spaces': spaces, 'cases': [ids(t) for t in texts]}))
