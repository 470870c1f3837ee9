// Machine files as elements: their positions, and that no XML is an error with line and column.
#include "topology/readers/machine_xml.h"

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
    EXPECT_EQ(a.attributes.size(), 3u);
    EXPECT_EQ(a.get("empty"), "");
    EXPECT_EQ(a.get("none"), "");
    ASSERT_EQ(a.children.size(), 2u);
    EXPECT_EQ(a.children[1].name, "c");
    EXPECT_EQ(a.children[1].get("x"), "2");
    EXPECT_EQ(a.children[1].at.line, 5);
    EXPECT_EQ(a.children[1].at.column, 23);
}

TEST(Xml, ControlCharactersInAttributesAreSpaces) {
    const Result<XmlElement> root = parse_xml("<a b=\"x\ny&#27;[2Jz&#10;\"/>");
    ASSERT_TRUE(root.ok());
    EXPECT_EQ(root.value().get("b"), "x y [2Jz ");
}

TEST(Xml, ErrorsSayWhereAndWhatIsAccepted) {
    const std::pair<const char*, const char*> cases[] = {
        {"",
         "line 1, column 1: there is no element; accepted: <system> (NCCL) or <topology> (hwloc)"},
        {"<a/><b/>",
         "line 1, column 5: a second element beside the root; accepted: one root element"},
        {"<a>\n <b>\n</a>", "line 3, column 3: Start-end tags mismatch; accepted: well-formed XML"},
        {"<a>\n <b x=1/>\n</a>",
         "line 2, column 7: Error parsing element attribute; accepted: well-formed XML"},
        {"<a\n x=\"1",
         "line 2, column 5: Error parsing element attribute; accepted: well-formed XML"},
    };
    for (const auto& [text, message] : cases) {
        EXPECT_EQ(error_of(text), message) << text;
    }
    EXPECT_EQ(error_of(std::string_view("<a>\0</a>", 8)),
              "line 1, column 4: a zero byte; accepted: text");
    EXPECT_EQ(error_of(std::string_view("\xff\xfe<\0a\0/\0>\0", 10)),
              "line 1, column 4: UTF-16, as some editors and shells write it; accepted: UTF-8");
}

// Entities that hold each other and depth without end are how XML readers are attacked.
TEST(Xml, IsBounded) {
    std::string deep;
    for (int i = 0; i <= kMaxXmlDepth; ++i) {
        deep += "<a>";
    }
    for (int i = 0; i <= kMaxXmlDepth; ++i) {
        deep += "</a>";
    }
    EXPECT_EQ(error_of(deep), "line 1, column 385: elements are nested deeper than 128");
    EXPECT_EQ(error_of(std::string(kMaxXmlBytes + 1, ' ')),
              "the file has 16777217 bytes; accepted: 16777216 or less");
    const auto entities =
        parse_xml("<!DOCTYPE a [<!ENTITY x \"xx\"><!ENTITY y \"&x;&x;\">]><a b=\"&y;\"/>");
    ASSERT_TRUE(entities.ok()) << entities.status().message();
    EXPECT_EQ(entities.value().get("b"), "&y;");
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
