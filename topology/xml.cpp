#include "topology/xml.h"

#include <utility>

namespace slimwire {
namespace {

bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

bool starts_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == ':' ||
           static_cast<unsigned char>(c) >= 0x80;
}

bool continues_name(char c) {
    return starts_name(c) || (c >= '0' && c <= '9') || c == '-' || c == '.';
}

// A character for an error message.
std::string quoted(char c) {
    if (c >= ' ' && c < 0x7f) {
        return std::string("'") + c + "'";
    }
    return "byte " + std::to_string(static_cast<unsigned char>(c));
}

void append_utf8(uint32_t code, std::string* out) {
    if (code < 0x80) {
        *out += static_cast<char>(code);
    } else if (code < 0x800) {
        *out += static_cast<char>(0xc0 | code >> 6);
        *out += static_cast<char>(0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
        *out += static_cast<char>(0xe0 | code >> 12);
        *out += static_cast<char>(0x80 | (code >> 6 & 0x3f));
        *out += static_cast<char>(0x80 | (code & 0x3f));
    } else {
        *out += static_cast<char>(0xf0 | code >> 18);
        *out += static_cast<char>(0x80 | (code >> 12 & 0x3f));
        *out += static_cast<char>(0x80 | (code >> 6 & 0x3f));
        *out += static_cast<char>(0x80 | (code & 0x3f));
    }
}

class Parser {
  public:
    explicit Parser(std::string_view text) : text_(text) {}

    Result<XmlElement> parse() {
        if (text_.size() > kMaxXmlBytes) {
            return Status(Code::kInvalidArgument,
                          "the file has " + std::to_string(text_.size()) +
                              " bytes; accepted: " + std::to_string(kMaxXmlBytes) + " or less");
        }
        if (text_.substr(0, 3) == "\xef\xbb\xbf") {
            next_ = 3;
        }
        SLIMWIRE_TRY(skip_outside());
        if (ended()) {
            return error("there is no element; accepted: <system> (NCCL) or <topology> (hwloc)");
        }
        SLIMWIRE_TRY(read_elements());
        SLIMWIRE_TRY(skip_outside());
        if (!ended()) {
            return error("a second element beside the root; accepted: one root element");
        }
        return std::move(root_);
    }

  private:
    [[nodiscard]] bool ended() const { return next_ >= text_.size(); }
    [[nodiscard]] char peek() const { return text_[next_]; }
    [[nodiscard]] bool sees(std::string_view what) const {
        return text_.substr(next_, what.size()) == what;
    }

    void advance() {
        if (text_[next_] == '\n') {
            ++at_.line;
            at_.column = 1;
        } else {
            ++at_.column;
        }
        ++next_;
    }
    void advance(size_t bytes) {
        for (size_t i = 0; i < bytes; ++i) {
            advance();
        }
    }
    void skip_space() {
        while (!ended() && is_space(peek())) {
            advance();
        }
    }

    [[nodiscard]] Status error_at(XmlPosition at, const std::string& what) const {
        return {Code::kInvalidArgument, position_text(at) + what};
    }
    [[nodiscard]] Status error(const std::string& what) const { return error_at(at_, what); }

    // Skips `open`, which the text is at, and everything up to and with `close`.
    Status skip_past(std::string_view open, std::string_view close) {
        const XmlPosition begin = at_;
        advance(open.size());
        while (!ended() && !sees(close)) {
            advance();
        }
        if (ended()) {
            return error_at(begin,
                            std::string(open) + " has no end; accepted: ..." + std::string(close));
        }
        advance(close.size());
        return {};
    }

    // What may stand between elements. Leaves the text at a tag, or at its end.
    Status skip_between() {
        while (!ended()) {
            if (sees("<!--")) {
                SLIMWIRE_TRY(skip_past("<!--", "-->"));
            } else if (sees("<?")) {
                SLIMWIRE_TRY(skip_past("<?", "?>"));
            } else if (sees("<![CDATA[")) {
                SLIMWIRE_TRY(skip_past("<![CDATA[", "]]>"));
            } else if (peek() == '<') {
                return {};
            } else if (peek() == '\0') {
                return error("a zero byte; accepted: text");
            } else {
                advance();
            }
        }
        return {};
    }

    // Before and behind the root: no text.
    Status skip_outside() {
        while (!ended()) {
            if (is_space(peek())) {
                advance();
            } else if (sees("<!--")) {
                SLIMWIRE_TRY(skip_past("<!--", "-->"));
            } else if (sees("<?")) {
                SLIMWIRE_TRY(skip_past("<?", "?>"));
            } else if (sees("<!DOCTYPE")) {
                const XmlPosition begin = at_;
                while (!ended() && peek() != '>' && peek() != '[') {
                    advance();
                }
                if (ended() || peek() == '[') {
                    return error_at(begin,
                                    "a DOCTYPE with declarations or without end; accepted: "
                                    "<!DOCTYPE name SYSTEM \"file\">");
                }
                advance();
            } else if (peek() == '<') {
                return {};
            } else {
                return error(quoted(peek()) + " outside of the root element; accepted: <");
            }
        }
        return {};
    }

    Status read_name(const char* of_what, std::string* name) {
        if (ended() || !starts_name(peek())) {
            return error(std::string("a name of ") + of_what + " is missing" +
                         (ended() ? "" : " before " + quoted(peek())) +
                         "; accepted: a letter, '_' or ':' first");
        }
        const size_t begin = next_;
        while (!ended() && continues_name(peek())) {
            advance();
        }
        name->assign(text_.substr(begin, next_ - begin));
        return {};
    }

    // At '&'.
    Status read_reference(std::string* value) {
        const XmlPosition begin = at_;
        const size_t end = text_.substr(next_, 12).find(';');
        if (end == std::string_view::npos) {
            return error_at(begin, "'&' begins no reference; accepted: &amp;");
        }
        const std::string_view name = text_.substr(next_ + 1, end - 1);
        constexpr std::pair<std::string_view, char> kEntities[] = {
            {"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
        for (const auto& [entity, character] : kEntities) {
            if (name == entity) {
                *value += character;
                advance(end + 1);
                return {};
            }
        }
        uint32_t code = 0;
        bool valid = name.size() >= 2 && name[0] == '#';
        const bool hex = valid && name[1] == 'x';
        valid = valid && name.size() > (hex ? 2u : 1u);
        for (size_t i = hex ? 2 : 1; valid && i < name.size(); ++i) {
            const char c = name[i];
            const int digit = c >= '0' && c <= '9'          ? c - '0'
                              : hex && c >= 'a' && c <= 'f' ? c - 'a' + 10
                              : hex && c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                            : -1;
            valid = digit >= 0;
            code = valid ? code * (hex ? 16 : 10) + static_cast<uint32_t>(digit) : 0;
            valid = valid && code <= 0x10ffff;
        }
        if (!valid || code == 0 || (code >= 0xd800 && code < 0xe000)) {
            return error_at(begin, "unknown reference '&" + std::string(name) +
                                       ";'; accepted: &amp; &lt; &gt; &quot; &apos; &#N; &#xN;");
        }
        append_utf8(code, value);
        advance(end + 1);
        return {};
    }

    Status read_attribute(XmlElement* element) {
        XmlAttribute attribute;
        attribute.at = at_;
        SLIMWIRE_TRY(read_name("an attribute", &attribute.name));
        skip_space();
        if (ended() || peek() != '=') {
            return error("attribute '" + attribute.name +
                         "' has no value; accepted: " + attribute.name + "=\"...\"");
        }
        advance();
        skip_space();
        if (ended() || (peek() != '"' && peek() != '\'')) {
            return error("the value of '" + attribute.name +
                         "' is not quoted; accepted: " + attribute.name + "=\"...\"");
        }
        const XmlPosition opening = at_;
        const char quote = peek();
        advance();
        while (!ended() && peek() != quote) {
            if (peek() == '<' || peek() == '\0') {
                return error(quoted(peek()) + " in the value of '" + attribute.name +
                             "'; accepted: a closing quote before it, or &lt;");
            }
            if (peek() == '&') {
                SLIMWIRE_TRY(read_reference(&attribute.value));
            } else {
                attribute.value += peek();
                advance();
            }
        }
        if (ended()) {
            return error_at(opening, "the value of '" + attribute.name + "' has no closing quote");
        }
        advance();
        if (element->find(attribute.name) != nullptr) {
            return error_at(attribute.at, "attribute '" + attribute.name + "' stands twice in <" +
                                              element->name + ">; accepted: once");
        }
        if (element->attributes.size() >= kMaxXmlAttributes) {
            return error_at(attribute.at, "<" + element->name + "> has more than " +
                                              std::to_string(kMaxXmlAttributes) + " attributes");
        }
        element->attributes.push_back(std::move(attribute));
        return {};
    }

    // At '<' of a start tag; *empty: it ends itself.
    Status read_start_tag(XmlElement* element, bool* empty) {
        element->at = at_;
        advance();
        SLIMWIRE_TRY(read_name("an element", &element->name));
        while (true) {
            const bool spaced = !ended() && is_space(peek());
            skip_space();
            if (ended()) {
                return error_at(element->at, "<" + element->name + " has no end; accepted: >");
            }
            if (peek() == '>' || sees("/>")) {
                *empty = peek() == '/';
                advance(*empty ? 2 : 1);
                return {};
            }
            if (!spaced) {
                return error(quoted(peek()) + " in <" + element->name +
                             ">; accepted: a space and an attribute, > or />");
            }
            SLIMWIRE_TRY(read_attribute(element));
        }
    }

    Status read_end_tag(const XmlElement& open) {
        const XmlPosition begin = at_;
        advance(2);
        std::string name;
        SLIMWIRE_TRY(read_name("an element", &name));
        skip_space();
        if (name != open.name) {
            return error_at(begin, "</" + name + "> ends no element; accepted: </" + open.name +
                                       ">, for the <" + open.name + "> of line " +
                                       std::to_string(open.at.line));
        }
        if (ended() || peek() != '>') {
            return error("</" + name + " has no end; accepted: >");
        }
        advance();
        return {};
    }

    // The root and all in it; an element moves into its parent when it ends.
    Status read_elements() {
        std::vector<XmlElement> open;
        int elements = 0;
        do {
            if (ended()) {
                return error("<" + open.back().name + "> of line " +
                             std::to_string(open.back().at.line) + " has no end; accepted: </" +
                             open.back().name + ">");
            }
            if (!open.empty() && sees("</")) {
                SLIMWIRE_TRY(read_end_tag(open.back()));
                close(&open);
            } else {
                if (++elements > kMaxXmlElements) {
                    return error("more than " + std::to_string(kMaxXmlElements) + " elements");
                }
                if (open.size() >= kMaxXmlDepth) {
                    return error("elements are nested deeper than " + std::to_string(kMaxXmlDepth));
                }
                bool empty = false;
                XmlElement element;
                SLIMWIRE_TRY(read_start_tag(&element, &empty));
                open.push_back(std::move(element));
                if (empty) {
                    close(&open);
                }
            }
            if (!open.empty()) {
                SLIMWIRE_TRY(skip_between());
            }
        } while (!open.empty());
        return {};
    }

    void close(std::vector<XmlElement>* open) {
        XmlElement element = std::move(open->back());
        open->pop_back();
        if (open->empty()) {
            root_ = std::move(element);
        } else {
            open->back().children.push_back(std::move(element));
        }
    }

    std::string_view text_;
    size_t next_ = 0;
    XmlPosition at_;
    XmlElement root_;
};

}  // namespace

const XmlAttribute* XmlElement::find(std::string_view attribute) const noexcept {
    for (const XmlAttribute& candidate : attributes) {
        if (candidate.name == attribute) {
            return &candidate;
        }
    }
    return nullptr;
}

std::string_view XmlElement::get(std::string_view attribute) const noexcept {
    const XmlAttribute* found = find(attribute);
    return found == nullptr ? std::string_view() : std::string_view(found->value);
}

Result<XmlElement> parse_xml(std::string_view text) {
    return Parser(text).parse();
}

std::string position_text(XmlPosition at) {
    return "line " + std::to_string(at.line) + ", column " + std::to_string(at.column) + ": ";
}

}  // namespace slimwire
