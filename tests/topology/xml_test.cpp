// The reader of XML: what it takes, and that everything else is an error with its line and column.
#include "topology/xml.h"

#include <gtest/gtest.h>

namespace slimwire {
namespace {

std::string error_of(std::string_view text) {
    const Result<XmlElement> root = parse_xml(text);
    return root.ok() ? "taken" : root.status().message();
}

TEST(Xml, ElementsAttributesAndPositions) {
    const auto root = parse_xml(
        "\xef\xbb\xbf<?xml version='1.0'?>\n<!-- a -- comment -->\n<!DOCTYPE a SYSTEM \"a.dtd\">\n"
        "<a one=\"1\" two='a &amp; b &#65;&#x20AC; &lt;&quot;&apos;&gt;' empty=\"\">text\n"
        "  <b/><![CDATA[<no>]]><c x = \"2\" ></c>\n</a>\n<!-- end -->\n");
    ASSERT_TRUE(root.ok()) << root.status().message();
    const XmlElement& a = root.value();
    EXPECT_EQ(a.name, "a");
    EXPECT_EQ(a.get("one"), "1");
    EXPECT_EQ(a.get("two"), "a & b A\xe2\x82\xac <\"'>");
    EXPECT_NE(a.find("empty"), nullptr);
    EXPECT_EQ(a.get("empty"), "");
    EXPECT_EQ(a.find("none"), nullptr);
    ASSERT_EQ(a.children.size(), 2u);
    EXPECT_EQ(a.children[1].name, "c");
    EXPECT_EQ(a.children[1].get("x"), "2");
    EXPECT_EQ(a.children[1].at.line, 5);
    EXPECT_EQ(a.children[1].at.column, 23);
}

TEST(Xml, ErrorsSayWhereAndWhatIsAccepted) {
    const std::pair<const char*, const char*> cases[] = {
        {"",
         "line 1, column 1: there is no element; accepted: <system> (NCCL) or <topology> (hwloc)"},
        {"text", "line 1, column 1: 't' outside of the root element; accepted: <"},
        {"<a/><b/>",
         "line 1, column 5: a second element beside the root; accepted: one root element"},
        {"<a>\n <b>\n</a>",
         "line 3, column 1: </a> ends no element; accepted: </b>, for the <b> of line 2"},
        {"<a>\n <b/>\n", "line 3, column 1: <a> of line 1 has no end; accepted: </a>"},
        {"<a x=1/>", "line 1, column 6: the value of 'x' is not quoted; accepted: x=\"...\""},
        {"<a x/>", "line 1, column 5: attribute 'x' has no value; accepted: x=\"...\""},
        {"<a x=\"1\" x=\"2\"/>",
         "line 1, column 10: attribute 'x' stands twice in <a>; accepted: once"},
        {"<a x=\"1\"y=\"2\"/>",
         "line 1, column 9: 'y' in <a>; accepted: a space and an attribute, > or />"},
        {"<a\n x=\"1", "line 2, column 4: the value of 'x' has no closing quote"},
        {"<a x=\"<\"/>",
         "line 1, column 7: '<' in the value of 'x'; accepted: a closing quote before it, or &lt;"},
        {"<a x=\"&nbsp;\"/>",
         "line 1, column 7: unknown reference '&nbsp;'; accepted: &amp; &lt; &gt; &quot; &apos; "
         "&#N; "
         "&#xN;"},
        {"<a x=\"&#0;\"/>",
         "line 1, column 7: unknown reference '&#0;'; accepted: &amp; &lt; &gt; &quot; &apos; &#N; "
         "&#xN;"},
        {"<a x=\"a & b\"/>", "line 1, column 9: '&' begins no reference; accepted: &amp;"},
        {"<a><!-- b</a>", "line 1, column 4: <!-- has no end; accepted: ...-->"},
        {"<1/>",
         "line 1, column 2: a name of an element is missing before '1'; accepted: a letter, "
         "'_' or ':' first"},
        {"<a", "line 1, column 1: <a has no end; accepted: >"},
        {"<!DOCTYPE a [<!ENTITY b \"c\">]><a/>",
         "line 1, column 1: a DOCTYPE with declarations or without end; accepted: <!DOCTYPE name "
         "SYSTEM \"file\">"},
        {"</a>",
         "line 1, column 2: a name of an element is missing before '/'; accepted: a letter, "
         "'_' or ':' first"},
    };
    for (const auto& [text, message] : cases) {
        EXPECT_EQ(error_of(text), message) << text;
    }
    EXPECT_EQ(error_of(std::string_view("<a>\0</a>", 8)),
              "line 1, column 4: a zero byte; accepted: text");
}

// Entities that hold each other and depth without end are how XML readers are attacked.
TEST(Xml, IsBounded) {
    std::string deep;
    for (int i = 0; i <= kMaxXmlDepth; ++i) {
        deep += "<a>";
    }
    EXPECT_EQ(error_of(deep), "line 1, column 385: elements are nested deeper than 128");
    std::string wide = "<a";
    for (int i = 0; i <= kMaxXmlAttributes; ++i) {
        wide += " x" + std::to_string(i) + "=\"\"";
    }
    EXPECT_NE(error_of(wide + "/>").find("more than 128 attributes"), std::string::npos);
    EXPECT_NE(error_of("<!DOCTYPE a [<!ENTITY x \"xx\"><!ENTITY y \"&x;&x;\">]><a b=\"&y;\"/>")
                  .find("DOCTYPE"),
              std::string::npos);
}

// Every cut of a file is an error of some place in it, and none crashes.
TEST(Xml, EveryCutIsAnErrorInsideTheText) {
    const std::string text = "<a one=\"1\">\n<b two='&lt;'/><!-- c --></a>";
    for (size_t length = 0; length < text.size(); ++length) {
        EXPECT_EQ(error_of(std::string_view(text).substr(0, length)).substr(0, 5), "line ")
            << length;
    }
    EXPECT_EQ(error_of(text), "taken");
}

}  // namespace
}  // namespace slimwire
